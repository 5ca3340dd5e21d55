// Package settings owns what the command lines of all components have in common: the environment
// variables that stand for them, those of the log, the range of a port, and the settings of
// NVIDIA's DRA driver that Mica accepts and ignores. It knows no command's own flags.
package settings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
)

// NewCommand runs a component until it is told to stop. It has the flags of the log, and takes
// from the environment what the command line does not set: see FromEnvironment.
func NewCommand(name, short string, variables map[string]string, run func(context.Context) error) *cobra.Command {
	logging := NewLogging()
	command := &cobra.Command{
		Use:           name,
		Short:         short,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			if err := FromEnvironment(command.Flags(), variables); err != nil {
				return err
			}
			return logging.Apply(command.Flags())
		},
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return run(klog.NewContext(ctx, klog.Background()))
		},
	}
	logging.AddFlags(command.PersistentFlags())
	return command
}

// FromEnvironment sets the flags that the command line does not, from variables with the
// flag's name in capitals and underscores. variables has those that are called otherwise, by
// flag. A flag of one letter has no variable: V is too likely to mean something else.
func FromEnvironment(set *pflag.FlagSet, variables map[string]string) error {
	var failures []error
	set.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "help" || len(flag.Name) == 1 || flag.Changed {
			return // a shell's HELP is not meant for us
		}
		name, special := variables[flag.Name]
		if !special {
			name = strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		}
		value := os.Getenv(name)
		if value == "" {
			return
		}
		if err := set.Set(flag.Name, value); err != nil {
			failures = append(failures, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return errors.Join(failures...)
}

// CheckPort refuses what is no port. A negative one means that none is opened.
func CheckPort(flag string, port int) error {
	if port > 65535 {
		return fmt.Errorf("--%s is %d: a TCP port is at most 65535", flag, port)
	}
	return nil
}

// Logging is how a process logs.
type Logging struct {
	configuration *logsapi.LoggingConfiguration
	gates         gates
}

// NewLogging returns the defaults.
func NewLogging() *Logging {
	l := &Logging{
		configuration: logsapi.NewLoggingConfiguration(),
		gates:         gates{logging: featuregate.NewFeatureGate(), nvidia: map[string]bool{}},
	}
	runtime.Must(logsapi.AddFeatureGates(l.gates.logging)) // fails for gates that are there only
	return l
}

// AddFlags adds the flags of the log and of its feature gates.
func (l *Logging) AddFlags(set *pflag.FlagSet) {
	logsapi.AddFlags(l.configuration, set)
	set.Var(&l.gates, "feature-gates", "Feature gates of the logging library, as NAME=true or NAME=false, separated by commas. Those of NVIDIA's DRA driver are accepted and ignored.")
}

// Apply makes the process log as the flags in set say. It works once in a process.
func (l *Logging) Apply(set *pflag.FlagSet) error {
	if err := logsapi.ValidateAndApply(l.configuration, l.gates.logging); err != nil {
		return err
	}
	l.WarnOfNVIDIAs(klog.Background(), set)
	return nil
}
