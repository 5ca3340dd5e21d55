package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

const doctorHelp = `Find known mistakes that keep GPUs from pods, give a GPU to two drivers or buy nodes in vain,
and print how to fix each.

It reads the cluster with your rights, changes nothing, and lists what it could not read. It does not see
what only a node shows, such as the configuration of its container runtime.

Exit codes: 0 no errors were found, 1 errors were found, 2 no check could run.`

// newDoctorCommand connects to a cluster only when it runs.
func newDoctorCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (*survey, error)) *cobra.Command {
	var driver string
	format := terminal.Tabular
	command := &cobra.Command{
		Use:     "doctor",
		Short:   "Find what keeps GPUs from pods, and how to fix it",
		Long:    doctorHelp,
		Example: "  kubectl gpu doctor\n  kubectl gpu doctor -o json",
		Args:    noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := format.Check(terminal.Tabular, terminal.JSON, terminal.YAML); err != nil {
				return err
			}
			s, err := connect(config)
			if err != nil {
				return err
			}
			facts, err := s.facts(command.Context(), driver)
			if err != nil {
				return err
			}
			return conclude(command, format, doctor.Examine(facts))
		},
	}
	flags := command.Flags()
	flags.StringVarP((*string)(&format), "output", "o", string(format), "how to print: table, json or yaml")
	flags.StringVar(&driver, "driver-name", slice.DefaultDriver, "the name under which Mica's driver publishes devices")
	return command
}

// conclude prints the report and returns the error for the exit code.
func conclude(command *cobra.Command, format terminal.Format, report doctor.Report) error {
	out := command.OutOrStdout()
	var err error
	if format == terminal.Tabular {
		err = doctor.Write(out, terminal.Of(out, os.LookupEnv), report)
	} else {
		err = format.Encode(out, report)
	}
	if err != nil {
		return err
	}
	if report.Blind() {
		return errors.New("no check could run: " + fleet.AskFor)
	}
	if count := report.Count(doctor.Error); count > 0 {
		return negativeAnswer(fmt.Sprintf("%d findings are errors: fix them, and run kubectl gpu doctor again", count))
	}
	return nil
}
