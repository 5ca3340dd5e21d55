package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

func latencyCommand(client connect) *cobra.Command {
	after, profile, contention := false, "", time.Duration(0)
	cmd := &cobra.Command{
		Use:   "latency FUNCTION DURATION | latency --profile NAME | latency --contention DURATION",
		Short: "Make a function slow; a duration of 0 makes it fast again",
		Example: "  nvml-sim latency nvmlDeviceGetName 50ms\n" +
			"  nvml-sim latency '*' 1ms    # all functions without a latency of their own\n" +
			"  nvml-sim latency --profile realistic\n" +
			"  nvml-sim latency --contention 200ms",
		Args: func(cmd *cobra.Command, args []string) error {
			if profile != "" || cmd.Flags().Changed("contention") {
				return exactly()(cmd, args)
			}
			return exactly("FUNCTION", "DURATION")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("contention") {
				return run(client, func(c wire.Client) error { return c.SetContention(contention) })
			}
			if profile != "" {
				return run(client, func(c wire.Client) error { return c.SetLatencyProfile(profile) })
			}
			latency, err := time.ParseDuration(args[1])
			if err != nil {
				return fmt.Errorf("DURATION %q is not one such as 50ms or 2s", args[1])
			}
			return run(client, func(c wire.Client) error {
				if after {
					return c.SetLatencyAfter(args[0], latency)
				}
				return c.SetLatency(args[0], latency)
			})
		},
	}
	cmd.Flags().BoolVar(&after, "after", after, "let the function do its work first and take its time then")
	cmd.Flags().StringVar(&profile, "profile", profile, "set the latencies of many functions: realistic")
	cmd.Flags().DurationVar(&contention, "contention", contention,
		"let look-ups by UUID and walks over MIG devices take that much longer for each other one under way")
	cmd.MarkFlagsMutuallyExclusive("profile", "contention", "after")
	return cmd
}

func stallCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:     "stall DURATION",
		Short:   "Let no call return for a while, as while the driver recovers a GPU",
		Example: "  nvml-sim stall 45s",
		Args:    exactly("DURATION"),
		RunE: func(_ *cobra.Command, args []string) error {
			duration, err := time.ParseDuration(args[0])
			if err != nil {
				return fmt.Errorf("DURATION %q is not one such as 45s", args[0])
			}
			return run(client, func(c wire.Client) error { return c.Stall(duration) })
		},
	}
}

func failCommand(client connect) *cobra.Command {
	failure := model.Failure{}
	gpu := -1
	cmd := &cobra.Command{
		Use:   "fail FUNCTION RETURN",
		Short: "Make a function fail; RETURN is a number or a name such as GPU_IS_LOST",
		Args:  exactly("FUNCTION", "RETURN"),
		RunE: func(_ *cobra.Command, args []string) error {
			var err error
			failure.Function = args[0]
			if failure.Return, err = parseReturn(args[1]); err != nil {
				return err
			}
			if gpu >= 0 {
				failure.GPU = &gpu
			}
			return run(client, func(c wire.Client) error { return c.Fail(failure) })
		},
	}
	cmd.Flags().IntVar(&failure.Times, "times", 0, "fail this many calls; 0 for all until clear")
	cmd.Flags().BoolVar(&failure.After, "after", false, "let the function do its work first and fail then")
	cmd.Flags().IntVar(&gpu, "gpu", gpu, "fail calls on this GPU only")
	return cmd
}

func clearCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "clear",
		Short: "Undo all that latency and fail did",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			return run(client, wire.Client.Clear)
		},
	}
}
