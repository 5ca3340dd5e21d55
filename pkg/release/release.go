// Package release returns the version of a binary, and has the command that prints it. It reads nothing
// but the binary itself.
package release

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version returns linked, which the linker sets in releases. If that is empty, it returns the commit that
// the binary was built from.
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

// NewCommand returns a command that prints the version.
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
