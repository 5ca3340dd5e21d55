package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// migCommand does to partitions what an administrator does with nvidia-smi mig.
func migCommand(client connect) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mig",
		Short: "List, create and destroy MIG instances, and switch MIG on and off",
		Args:  subcommandOnly,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		migListCommand(client), migModeCommand(client), migCreateCommand(client), migDestroyCommand(client),
		occupyCommand(client, "occupy", "Let a process use a GPU, or a GPU instance of it", true),
		occupyCommand(client, "vacate", "End the use by a process", false),
	)
	return cmd
}

func migListCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the MIG instances of every GPU",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(client, func(c wire.Client) error {
				state, err := c.State()
				if err != nil {
					return err
				}
				return printInstances(cmd.OutOrStdout(), state)
			})
		},
	}
}

func migModeCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "mode GPU on|off",
		Short: "Switch MIG on or off; on Ampere that takes a reset as well",
		Args:  exactly("GPU", "on|off"),
		RunE: func(_ *cobra.Command, args []string) error {
			gpu, err := number("GPU", args[0])
			if err != nil {
				return err
			}
			if args[1] != "on" && args[1] != "off" {
				return fmt.Errorf("the MIG mode %q is neither on nor off", args[1])
			}
			return run(client, func(c wire.Client) error { return c.SetMIGMode(gpu, args[1] == "on") })
		},
	}
}

func migCreateCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:     "create GPU PROFILE[@START]",
		Short:   "Create a GPU instance and a compute instance in it, and print the MIG device's UUID",
		Example: "  nvml-sim mig create 0 3g.40gb@4",
		Args:    exactly("GPU", "PROFILE[@START]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			gpu, err := number("GPU", args[0])
			if err != nil {
				return err
			}
			profile, text, placed := strings.Cut(args[1], "@")
			var start *int
			if placed {
				n, err := number("START", text)
				if err != nil {
					return err
				}
				start = &n
			}
			return run(client, func(c wire.Client) error {
				created, err := c.CreateInstance(gpu, profile, start)
				if err != nil {
					return err
				}
				for _, ci := range created.ComputeInstances {
					fmt.Fprintln(cmd.OutOrStdout(), ci.UUID)
				}
				return nil
			})
		},
	}
}

func migDestroyCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "destroy GPU GI",
		Short: "Destroy a GPU instance with its compute instances",
		Args:  exactly("GPU", "GI"),
		RunE: func(_ *cobra.Command, args []string) error {
			gpu, err := number("GPU", args[0])
			if err != nil {
				return err
			}
			id, err := number("GI", args[1])
			if err != nil {
				return err
			}
			return run(client, func(c wire.Client) error { return c.DestroyInstance(gpu, id) })
		},
	}
}

func occupyCommand(client connect, name, short string, inUse bool) *cobra.Command {
	return &cobra.Command{
		Use:   name + " GPU [GI]",
		Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactly("GPU")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			gpu, gi, err := gpuAndInstance(args)
			if err != nil {
				return err
			}
			return run(client, func(c wire.Client) error { return c.Occupy(gpu, gi, inUse) })
		},
	}
}

func resetCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "reset GPU",
		Short: "Reset a GPU: its MIG instances go and a pending MIG mode is activated",
		Args:  exactly("GPU"),
		RunE:  onGPU(client, wire.Client.Reset),
	}
}

func rebootCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "reboot",
		Short: "Leave the GPUs as after a start of the machine: MIG instances and modes are gone",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			return run(client, wire.Client.Reboot)
		},
	}
}

func printInstances(to io.Writer, state model.State) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tGI\tCI\tDEVICE\tPROFILE\tPLACEMENT\tUUID\tSTATE")
	for _, gpu := range state.GPUs {
		for _, gi := range gpu.Instances {
			use := "free"
			if gi.InUse {
				use = "in use"
			}
			placement := fmt.Sprintf("%d:%d", gi.Start, gi.Size)
			if len(gi.ComputeInstances) == 0 {
				fmt.Fprintf(w, "%d\t%d\t-\t-\t%s\t%s\t-\t%s\n", gpu.Index, gi.ID, gi.Profile, placement, use)
			}
			for _, ci := range gi.ComputeInstances {
				fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", gpu.Index, gi.ID, ci.ID, ci.Index, ci.Profile, placement, ci.UUID, use)
			}
		}
	}
	return w.Flush()
}
