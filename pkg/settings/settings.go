// Package settings has what the command lines of all components share: environment variables for flags, the
// flags of the log, the range of ports, and the settings of NVIDIA's DRA driver that Mica accepts and
// ignores. It knows no command's own flags.
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

// NewCommand returns a command that runs a component until SIGTERM or SIGINT. It has the flags of the log,
// and sets the others from the environment: see FromEnvironment.
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

// FromEnvironment sets the flags that the command line does not set. A flag's variable is its name in
// capitals and underscores; variables has exceptions, by flag. Flags of one letter have none, because other
// programs may use a variable such as V.
func FromEnvironment(set *pflag.FlagSet, variables map[string]string) error {
	var failures []error
	set.VisitAll(func(flag *pflag.Flag) {
		if flag.Name == "help" || len(flag.Name) == 1 || flag.Changed {
			return // a variable HELP of the shell is for other programs
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

// CheckPort returns an error for numbers above those of ports. A negative number means that none is opened.
func CheckPort(flag string, port int) error {
	if port > 65535 {
		return fmt.Errorf("--%s is %d: a TCP port is at most 65535", flag, port)
	}
	return nil
}

// Logging configures the log of a process.
type Logging struct {
	configuration *logsapi.LoggingConfiguration
	gates         gates
}

// NewLogging returns the default configuration.
func NewLogging() *Logging {
	l := &Logging{
		configuration: logsapi.NewLoggingConfiguration(),
		gates:         gates{logging: featuregate.NewFeatureGate(), nvidia: map[string]bool{}},
	}
	runtime.Must(logsapi.AddFeatureGates(l.gates.logging)) // fails only for gates that exist
	return l
}

// AddFlags adds the flags of the log and of its feature gates.
func (l *Logging) AddFlags(set *pflag.FlagSet) {
	logsapi.AddFlags(l.configuration, set)
	set.Var(&l.gates, "feature-gates", "Feature gates of the logging library, as NAME=true or NAME=false, separated by commas. Those of NVIDIA's DRA driver are accepted and ignored.")
}

// Apply configures the log by the flags. Call it once per process.
func (l *Logging) Apply(set *pflag.FlagSet) error {
	if err := logsapi.ValidateAndApply(l.configuration, l.gates.logging); err != nil {
		return err
	}
	l.WarnOfNVIDIAs(klog.Background(), set)
	return nil
}
