package main

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// newPauseCommand is the command of placeholders.
func newPauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pause",
		Short: "Do nothing until SIGTERM, as the container of a placeholder",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			<-ctx.Done()
			return nil
		},
	}
}
