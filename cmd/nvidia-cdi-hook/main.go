// Command nvidia-cdi-hook is NVIDIA's CDI hook with one more subcommand: batch runs several hooks
// in one process. The container runtime starts a process per hook and container, which on a busy
// node costs more than the hooks themselves.
package main

import (
	"context"
	"os"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
)

func main() {
	log := logrus.New()
	if err := newCommand(log).Run(context.Background(), os.Args); err != nil {
		log.Errorf("%v", err)
		os.Exit(1)
	}
}

func newCommand(log *logrus.Logger) *cli.Command {
	hooks := func() *cli.Command {
		return commands.ConfigureCDIHookCommand(log, &cli.Command{
			Name:  "nvidia-cdi-hook",
			Usage: "Hooks that NVIDIA GPUs need in a container, run by the container runtime",
		})
	}
	root := hooks()
	root.Commands = append(root.Commands, &cli.Command{
		Name:      "batch",
		Usage:     "Run several hooks one after the other",
		ArgsUsage: `'["HOOK", "ARGUMENT"...]' ...`,
		Action: func(ctx context.Context, command *cli.Command) error {
			return runBatch(ctx, command.Args().Slice(), os.Stdin, func(ctx context.Context, arguments []string) error {
				// A command keeps the flags that it has parsed, so each hook gets its own.
				return hooks().Run(ctx, append([]string{os.Args[0]}, arguments...))
			})
		},
	})
	return root
}
