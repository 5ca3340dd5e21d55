package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

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
	at := controller(func() (wire.Client, error) {
		if socket == "" {
			return wire.Client{}, fmt.Errorf("which simulator is not said: set --socket or %s to the path of its socket", socketVariable)
		}
		return wire.Client{Socket: socket}, nil
	})
	nodesCommand := &cobra.Command{Use: "nodes", Short: "List the ready-made machines", Args: exactly(), RunE: func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(nodes.Names(), "\n"))
		return err
	}}
	root.AddCommand(serveCommand(&socket), nodesCommand, at.migCommand(),
		at.shows("status", "Show the machine, its GPUs and what is injected", printState),
		at.shows("calls", "Count the calls of each NVML function since the start", func(to io.Writer, s model.State) error { return printCalls(to, s.Calls) }),
		at.xidCommand(), at.driverCommand(), at.conditionCommand(), at.latencyCommand(), at.failCommand(), at.useCommand(),
		at.does("fabric STATE", "Set how far the fabric manager has come: notStarted, inProgress or completed", func(c wire.Client, a arguments) error {
			return c.SetFabric(model.Fabric(a[0]))
		}),
		at.does("stall DURATION", "Let no call return for a while, as while the driver recovers a GPU", func(c wire.Client, a arguments) error {
			duration, err := a.duration(0)
			if err != nil {
				return err
			}
			return c.Stall(duration)
		}),
		at.does("clear", "Undo all that latency and fail did", func(c wire.Client, _ arguments) error { return c.Clear() }),
		at.does("reboot", "Leave the GPUs as after a start of the machine: MIG instances and modes are gone", func(c wire.Client, _ arguments) error { return c.Reboot() }),
		at.onGPU("lose", "Let a GPU fall off the bus", wire.Client.Lose),
		at.onGPU("return", "Bring a lost GPU back", wire.Client.Return),
		at.onGPU("attach", "Add a GPU that is absent", wire.Client.Attach),
		at.onGPU("detach", "Take a GPU that is not in use from the driver", wire.Client.Detach),
		at.onGPU("reset", "Reset a GPU: its MIG instances go and a pending MIG mode is activated", wire.Client.Reset),
	)
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

// controller connects to the running machine.
type controller func() (wire.Client, error)

// arguments are those of a command, in the order of its usage.
type arguments []string

// number is an argument that counts from 0.
func (a arguments) number(i int, what string) (int, error) {
	n, err := strconv.ParseUint(a[i], 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s %q is not a number from 0 on", what, a[i])
	}
	return int(n), nil
}

func (a arguments) duration(i int) (time.Duration, error) {
	d, err := time.ParseDuration(a[i])
	if err != nil {
		return 0, fmt.Errorf("DURATION %q is not one such as 50ms or 2s", a[i])
	}
	return d, nil
}

// gpuAndInstance reads the arguments GPU [GI].
func (a arguments) gpuAndInstance() (gpu int, instance *int, err error) {
	if gpu, err = a.number(0, "GPU"); err != nil || len(a) == 1 {
		return gpu, nil, err
	}
	id, err := a.number(1, "GI")
	return gpu, &id, err
}

// does is a command with the arguments that its usage names; those in brackets are optional.
func (at controller) does(usage, short string, do func(wire.Client, arguments) error) *cobra.Command {
	names := strings.Fields(usage)[1:]
	return &cobra.Command{Use: usage, Short: short, Args: exactly(names...), RunE: func(_ *cobra.Command, args []string) error {
		c, err := at()
		if err != nil {
			return err
		}
		return do(c, args)
	}}
}

func (at controller) onGPU(name, short string, do func(wire.Client, int) error) *cobra.Command {
	return at.does(name+" GPU", short, func(c wire.Client, a arguments) error {
		gpu, err := a.number(0, "GPU")
		if err != nil {
			return err
		}
		return do(c, gpu)
	})
}

// shows is a command that prints the machine's state.
func (at controller) shows(name, short string, show func(io.Writer, model.State) error) *cobra.Command {
	cmd := at.does(name, short, nil)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := at()
		if err != nil {
			return err
		}
		state, err := c.State()
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), state)
	}
	return cmd
}

func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		least := len(names)
		if least > 0 && strings.HasPrefix(names[least-1], "[") {
			least--
		}
		switch {
		case len(args) >= least && len(args) <= len(names):
			return nil
		case len(names) == 0:
			return fmt.Errorf("%s takes no arguments but has %q", cmd.Name(), args)
		}
		return fmt.Errorf("%s takes the arguments %s but has %q", cmd.Name(), strings.Join(names, " "), args)
	}
}

func (at controller) xidCommand() *cobra.Command {
	gi, ci := model.WholeGPU, model.WholeGPU
	cmd := at.does("xid GPU XID", "Report an XID error of a GPU, or of a MIG instance on it", func(c wire.Client, a arguments) error {
		gpu, err := a.number(0, "GPU")
		if err != nil {
			return err
		}
		xid, err := a.number(1, "XID")
		if err != nil {
			return err
		}
		event := model.XID(gpu, uint64(xid))
		event.GPUInstanceID, event.ComputeInstanceID = gi, ci
		return c.Inject(event)
	})
	cmd.Flags().Uint32Var(&gi, "gi", gi, "ID of the GPU instance; the default stands for the whole GPU")
	cmd.Flags().Uint32Var(&ci, "ci", ci, "ID of the compute instance; the default stands for the whole GPU instance")
	return cmd
}

func (at controller) driverCommand() *cobra.Command {
	var change model.Driver
	cmd := at.does("driver", "Install, upgrade, remove, load or unload the NVIDIA driver", func(c wire.Client, _ arguments) error {
		if change == (model.Driver{}) {
			return errors.New("nothing is to be changed: set --library, --module or both")
		}
		return c.SetDriver(change)
	})
	cmd.Example = "  nvml-sim driver --module none --library none               # take it away\n" +
		"  nvml-sim driver --library 590.44.01                        # upgrade it; the module follows after a reboot"
	cmd.Flags().StringVar(&change.Library, "library", "", "version of libraries and tools, or none; also to install the same version anew")
	cmd.Flags().StringVar(&change.Module, "module", "", "version of the kernel module, or none")
	return cmd
}

func (at controller) conditionCommand() *cobra.Command {
	var condition model.Condition
	cmd := at.onGPU("condition", "Set the health that a GPU reports; without flags it is healthy", func(c wire.Client, gpu int) error {
		return c.SetCondition(gpu, condition)
	})
	cmd.Flags().StringVar((*string)(&condition.RecoveryAction), "recovery-action", "", "what the driver asks for, such as gpu-reset or node-reboot")
	cmd.Flags().BoolVar(&condition.RemapPending, "remap-pending", false, "the next reset remaps rows of memory")
	cmd.Flags().StringVar((*string)(&condition.Fabric), "fabric", "", "health of the links into NVSwitches: unhealthy, limited-capacity, unknown or not-joined")
	cmd.Flags().BoolVar(&condition.RemapFailed, "remap-failed", false, "a row of memory could not be remapped")
	return cmd
}

func (at controller) latencyCommand() *cobra.Command {
	after := false
	cmd := at.does("latency FUNCTION DURATION", "Make a function slow; a duration of 0 makes it fast again", func(c wire.Client, a arguments) error {
		latency, err := a.duration(1)
		if err != nil {
			return err
		}
		if after {
			return c.SetLatencyAfter(a[0], latency)
		}
		return c.SetLatency(a[0], latency)
	})
	cmd.Example = "  nvml-sim latency nvmlDeviceGetName 50ms\n" +
		"  nvml-sim latency '*' 1ms    # all functions without a latency of their own"
	cmd.Flags().BoolVar(&after, "after", after, "let the function do its work first and take its time then")
	return cmd
}

func (at controller) failCommand() *cobra.Command {
	failure, gpu := model.Failure{}, -1
	cmd := at.does("fail FUNCTION RETURN", "Make a function fail; RETURN is a number or a name such as GPU_IS_LOST", func(c wire.Client, a arguments) (err error) {
		failure.Function = a[0]
		if failure.Return, err = parseReturn(a[1]); err != nil {
			return err
		}
		if gpu >= 0 {
			failure.GPU = &gpu
		}
		return c.Fail(failure)
	})
	cmd.Flags().IntVar(&failure.Times, "times", 0, "fail this many calls; 0 for all until clear")
	cmd.Flags().BoolVar(&failure.After, "after", false, "let the function do its work first and fail then")
	cmd.Flags().IntVar(&gpu, "gpu", gpu, "fail calls on this GPU only")
	return cmd
}

func (at controller) useCommand() *cobra.Command {
	utilization, temperature, watts := -1, -1, -1
	memory, sent, received := "", "", ""
	cmd := at.does("use GPU [GI]", "Set how busy a GPU or a GPU instance is according to NVML, how much of its memory is taken, and what a GPU's sensors say", func(c wire.Client, a arguments) error {
		gpu, instance, err := a.gpuAndInstance()
		if err != nil {
			return err
		}
		var use model.Use
		if utilization >= 0 {
			use.Utilization = &utilization
		}
		if temperature >= 0 {
			use.Temperature = ptr.To(uint32(temperature))
		}
		if watts >= 0 {
			use.PowerMilliwatts = ptr.To(uint32(watts) * 1000)
		}
		if memory != "" {
			bytes, err := amount("memory", memory)
			if err != nil {
				return err
			}
			use.MemoryBytes = &bytes
		}
		if sent != "" || received != "" {
			tx, err := amount("nvlink-sent", cmp.Or(sent, "0"))
			rx, err2 := amount("nvlink-received", cmp.Or(received, "0"))
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			use.NVLink = &model.Traffic{SentKiB: tx >> 10, ReceivedKiB: rx >> 10}
		}
		if use == (model.Use{}) {
			return errors.New("what is used is not said: set --utilization, --memory or a flag of a sensor")
		}
		return c.SetUse(gpu, instance, use)
	})
	cmd.Flags().IntVar(&utilization, "utilization", utilization, "percent of the time in which something runs")
	cmd.Flags().StringVar(&memory, "memory", memory, "memory that is taken, such as 20Gi")
	cmd.Flags().IntVar(&temperature, "temperature", temperature, "degrees Celsius")
	cmd.Flags().IntVar(&watts, "power", watts, "watts that the GPU draws")
	cmd.Flags().StringVar(&sent, "nvlink-sent", sent, "what has been sent over NVLinks, such as 20Gi")
	cmd.Flags().StringVar(&received, "nvlink-received", received, "what has been received over NVLinks")
	return cmd
}

// amount reads a number of bytes.
func amount(flag, text string) (bytes uint64, err error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("--%s %q is not an amount of memory such as 20Gi", flag, text)
	}
	return uint64(q.Value()), nil
}

// migCommand does to partitions what an administrator does with nvidia-smi mig.
func (at controller) migCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "mig", Short: "List, create and destroy MIG instances, and switch MIG on and off",
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	occupy := func(name, short string, inUse bool) *cobra.Command {
		return at.does(name+" GPU [GI]", short, func(c wire.Client, a arguments) error {
			gpu, gi, err := a.gpuAndInstance()
			if err != nil {
				return err
			}
			return c.Occupy(gpu, gi, inUse)
		})
	}
	cmd.AddCommand(
		at.shows("list", "List the MIG instances of every GPU", printInstances), at.migCreateCommand(),
		at.does("mode GPU on|off", "Switch MIG on or off; on Ampere that takes a reset as well", func(c wire.Client, a arguments) error {
			gpu, err := a.number(0, "GPU")
			if err != nil {
				return err
			}
			if a[1] != "on" && a[1] != "off" {
				return fmt.Errorf("unknown MIG mode %q: use on or off", a[1])
			}
			return c.SetMIGMode(gpu, a[1] == "on")
		}),
		at.does("destroy GPU GI", "Destroy a GPU instance with its compute instances", func(c wire.Client, a arguments) error {
			gpu, gi, err := a.gpuAndInstance()
			if err != nil {
				return err
			}
			return c.DestroyInstance(gpu, *gi)
		}),
		occupy("occupy", "Let a process use a GPU, or a GPU instance of it", true),
		occupy("vacate", "End the use by a process", false),
	)
	return cmd
}

func (at controller) migCreateCommand() *cobra.Command {
	var out io.Writer
	cmd := at.does("create GPU PROFILE[@START]", "Create a GPU instance and a compute instance in it, and print the MIG device's UUID", func(c wire.Client, a arguments) error {
		gpu, err := a.number(0, "GPU")
		if err != nil {
			return err
		}
		profile, text, placed := strings.Cut(a[1], "@")
		var start *int
		if placed {
			n, err := arguments{text}.number(0, "START")
			if err != nil {
				return err
			}
			start = &n
		}
		created, err := c.CreateInstance(gpu, profile, start)
		if err != nil {
			return err
		}
		for _, ci := range created.ComputeInstances {
			fmt.Fprintln(out, ci.UUID)
		}
		return nil
	})
	cmd.Example = "  nvml-sim mig create 0 3g.40gb@4"
	cmd.PreRun = func(cmd *cobra.Command, _ []string) { out = cmd.OutOrStdout() }
	return cmd
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
