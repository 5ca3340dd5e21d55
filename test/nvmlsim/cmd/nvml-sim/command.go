package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// socketVariable is where the library looks for the socket as well.
const socketVariable = "NVML_SIM_SOCKET"

func newCommand() *cobra.Command {
	socket := os.Getenv(socketVariable)
	root := &cobra.Command{
		Use:   "nvml-sim",
		Short: "Simulate a machine with NVIDIA GPUs",
		Long: "nvml-sim simulates a machine with NVIDIA GPUs. serve runs the machine; the other\n" +
			"commands make things happen to the GPUs of a running one.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          subcommandOnly,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().StringVar(&socket, "socket", socket,
		"path of the simulator's socket; default is the environment variable "+socketVariable)
	client := func() (wire.Client, error) {
		if socket == "" {
			return wire.Client{}, fmt.Errorf("which simulator is not said: set --socket or %s to the path of its socket", socketVariable)
		}
		return wire.Client{Socket: socket}, nil
	}
	root.AddCommand(
		serveCommand(&socket),
		nodesCommand(),
		statusCommand(client),
		callsCommand(client),
		xidCommand(client),
		driverCommand(client),
		fabricCommand(client),
		conditionCommand(client),
		latencyCommand(client),
		failCommand(client), stallCommand(client),
		clearCommand(client),
		useCommand(client),
		migCommand(client),
		resetCommand(client),
		rebootCommand(client),
	)
	root.AddCommand(presenceCommands(client)...)
	return root
}

func subcommandOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("there is no command %q; there are %s", args[0], strings.Join(names, ", "))
}

type connect func() (wire.Client, error)

func nodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "List the ready-made machines",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range nodes.Names() {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return nil
		},
	}
}

func statusCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the machine, its GPUs and what is injected",
		Args:  exactly(),
		RunE:  printing(client, printState),
	}
}

func callsCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "calls",
		Short: "Count the calls of each NVML function since the start",
		Args:  exactly(),
		RunE: printing(client, func(to io.Writer, state model.State) error {
			return printCalls(to, state.Calls)
		}),
	}
}

func printing(client connect, print func(io.Writer, model.State) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return run(client, func(c wire.Client) error {
			state, err := c.State()
			if err != nil {
				return err
			}
			return print(cmd.OutOrStdout(), state)
		})
	}
}

func xidCommand(client connect) *cobra.Command {
	gi, ci := int64(-1), int64(-1)
	cmd := &cobra.Command{
		Use:   "xid GPU XID",
		Short: "Report an XID error of a GPU, or of a MIG instance on it",
		Args:  exactly("GPU", "XID"),
		RunE: func(_ *cobra.Command, args []string) error {
			gpu, err := number("GPU", args[0])
			if err != nil {
				return err
			}
			xid, err := number("XID", args[1])
			if err != nil {
				return err
			}
			event := model.XID(gpu, uint64(xid))
			if event.GPUInstanceID, err = instance("--gi", gi); err != nil {
				return err
			}
			if event.ComputeInstanceID, err = instance("--ci", ci); err != nil {
				return err
			}
			return run(client, func(c wire.Client) error { return c.Inject(event) })
		},
	}
	cmd.Flags().Int64Var(&gi, "gi", gi, "ID of the GPU instance; -1 for the whole GPU")
	cmd.Flags().Int64Var(&ci, "ci", ci, "ID of the compute instance; -1 for the whole GPU instance")
	return cmd
}

func instance(flag string, id int64) (uint32, error) {
	switch {
	case id == -1:
		return model.WholeGPU, nil
	case id < 0 || id >= int64(model.WholeGPU):
		return 0, fmt.Errorf("%s %d is not the ID of an instance", flag, id)
	}
	return uint32(id), nil
}

// presenceCommands change whether a GPU is there.
func presenceCommands(client connect) []*cobra.Command {
	var commands []*cobra.Command
	for _, c := range []struct {
		name, short string
		do          func(wire.Client, int) error
	}{
		{"lose", "Let a GPU fall off the bus", wire.Client.Lose},
		{"return", "Bring a lost GPU back", wire.Client.Return},
		{"attach", "Add a GPU that is absent", wire.Client.Attach},
		{"detach", "Take a GPU that is not in use from the driver", wire.Client.Detach},
	} {
		commands = append(commands, &cobra.Command{Use: c.name + " GPU", Short: c.short, Args: exactly("GPU"), RunE: onGPU(client, c.do)})
	}
	return commands
}

func driverCommand(client connect) *cobra.Command {
	var change model.Driver
	cmd := &cobra.Command{
		Use:   "driver",
		Short: "Install, upgrade, remove, load or unload the NVIDIA driver",
		Example: "  nvml-sim driver --module none --library none               # take it away\n" +
			"  nvml-sim driver --library 590.44.01                        # upgrade it; the module follows after a reboot",
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			if change == (model.Driver{}) {
				return errors.New("nothing is to be changed: set --library, --module or both")
			}
			return run(client, func(c wire.Client) error { return c.SetDriver(change) })
		},
	}
	cmd.Flags().StringVar(&change.Library, "library", "", "version of libraries and tools, or none; also to install the same version anew")
	cmd.Flags().StringVar(&change.Module, "module", "", "version of the kernel module, or none")
	return cmd
}

func fabricCommand(client connect) *cobra.Command {
	return &cobra.Command{
		Use:   "fabric STATE",
		Short: "Say how far the fabric manager has come: notStarted, inProgress or completed",
		Args:  exactly("STATE"),
		RunE: func(_ *cobra.Command, args []string) error {
			return run(client, func(c wire.Client) error { return c.SetFabric(model.Fabric(args[0])) })
		},
	}
}

func conditionCommand(client connect) *cobra.Command {
	var condition model.Condition
	cmd := &cobra.Command{
		Use:     "condition GPU",
		Short:   "Set what a GPU says of its health; without flags, that it is healthy",
		Example: "  nvml-sim condition 0 --recovery-action gpu-reset",
		Args:    exactly("GPU"),
		RunE:    onGPU(client, func(c wire.Client, gpu int) error { return c.SetCondition(gpu, condition) }),
	}
	cmd.Flags().StringVar((*string)(&condition.RecoveryAction), "recovery-action", "", "what the driver asks for, such as gpu-reset or node-reboot")
	cmd.Flags().BoolVar(&condition.RemapPending, "remap-pending", false, "the next reset remaps rows of memory")
	cmd.Flags().StringVar((*string)(&condition.Fabric), "fabric", "", "health of the links into NVSwitches: unhealthy, limited-capacity, unknown or not-joined")
	cmd.Flags().BoolVar(&condition.RemapFailed, "remap-failed", false, "a row of memory could not be remapped")
	return cmd
}

func onGPU(client connect, do func(wire.Client, int) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		gpu, err := number("GPU", args[0])
		if err != nil {
			return err
		}
		return run(client, func(c wire.Client) error { return do(c, gpu) })
	}
}

func run(client connect, do func(wire.Client) error) error {
	c, err := client()
	if err != nil {
		return err
	}
	return do(c)
}

// exactly takes one argument for each name.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(names) == 0 {
			return fmt.Errorf("%s takes no arguments but has %q", cmd.Name(), args)
		}
		return fmt.Errorf("%s takes the arguments %s but has %q", cmd.Name(), strings.Join(names, " "), args)
	}
}

func number(what, text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s %q is not a number from 0 on", what, text)
	}
	return int(n), nil
}

// parseReturn reads an NVML return code by number or by name, with or without
// the prefix of C or of Go.
func parseReturn(text string) (nvml.Return, error) {
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return nvml.Return(n), nil
	}
	name := strings.TrimPrefix(strings.TrimPrefix(strings.ToUpper(text), "NVML_"), "ERROR_")
	const lastNamed = 64
	for _, r := range append(numbersTo(lastNamed), nvml.ERROR_UNKNOWN) {
		// Without a library loaded, go-nvml's text of a code is its name.
		if strings.TrimPrefix(r.Error(), "ERROR_") == name {
			return r, nil
		}
	}
	return 0, fmt.Errorf("RETURN %q is neither the number nor the name of an NVML return code", text)
}

func numbersTo(n int) []nvml.Return {
	var all []nvml.Return
	for i := range n {
		all = append(all, nvml.Return(i))
	}
	return all
}

// loadNode reads a machine's description from a file, or finds a ready-made
// one if there is no such file and the name is no path.
func loadNode(nameOrFile string) (model.File, error) {
	raw, err := os.ReadFile(nameOrFile)
	if err == nil {
		file, err := model.ParseFile(raw)
		if err != nil {
			return model.File{}, fmt.Errorf("machine description %s: %w", nameOrFile, err)
		}
		return file, nil
	}
	if filepath.Base(nameOrFile) == nameOrFile && errors.Is(err, os.ErrNotExist) {
		return nodes.Load(nameOrFile)
	}
	return model.File{}, fmt.Errorf("read the machine description: %w", err)
}
