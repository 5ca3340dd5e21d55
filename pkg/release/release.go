// Package release knows which version a binary is, and has the command that prints it. It
// never looks at anything but the binary itself.
package release

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the release that the linker has set in a command, or, where it is empty, the
// commit that the binary was built from.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return "development"
}

// NewCommand prints a version.
func NewCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(command.OutOrStdout(), version)
			return err
		},
	}
}
