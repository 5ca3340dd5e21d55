package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

func useCommand(client connect) *cobra.Command {
	utilization, memory := 0, ""
	cmd := &cobra.Command{
		Use:   "use GPU [GI]",
		Short: "Set how busy NVML says that a GPU is, or a GPU instance of it, and how much of its memory is taken",
		Example: "  nvml-sim use 0 --utilization 80 --memory 20Gi\n" +
			"  nvml-sim use 1 7 --memory 0",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactly("GPU")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			gpu, instance, err := gpuAndInstance(args)
			if err != nil {
				return err
			}
			var use model.Use
			if cmd.Flags().Changed("utilization") {
				use.Utilization = &utilization
			}
			if memory != "" {
				bytes, err := quantity(memory)
				if err != nil {
					return err
				}
				use.MemoryBytes = &bytes
			}
			if use == (model.Use{}) {
				return errors.New("what is used is not said: set --utilization, --memory or both")
			}
			return run(client, func(c wire.Client) error { return c.SetUse(gpu, instance, use) })
		},
	}
	cmd.Flags().IntVar(&utilization, "utilization", utilization, "percent of the time in which something runs")
	cmd.Flags().StringVar(&memory, "memory", memory, "memory that is taken, such as 20Gi")
	return cmd
}

// gpuAndInstance reads the arguments GPU [GI].
func gpuAndInstance(args []string) (gpu int, instance *int, err error) {
	if gpu, err = number("GPU", args[0]); err != nil || len(args) == 1 {
		return gpu, nil, err
	}
	id, err := number("GI", args[1])
	return gpu, &id, err
}

func quantity(text string) (uint64, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("--memory %q is not an amount of memory such as 20Gi", text)
	}
	return uint64(q.Value()), nil
}

func printUse(to io.Writer, state model.State) {
	say := func(what string, use model.UseState) {
		if use != (model.UseState{}) {
			fmt.Fprintf(to, "%s is %d%% utilised, with %d MiB of its memory taken\n", what, use.Utilization, use.MemoryBytes>>20)
		}
	}
	for _, gpu := range state.GPUs {
		say(fmt.Sprintf("GPU %d", gpu.Index), gpu.Use)
		for _, gi := range gpu.Instances {
			say(fmt.Sprintf("GPU instance %d of GPU %d", gi.ID, gpu.Index), gi.Use)
		}
	}
}
