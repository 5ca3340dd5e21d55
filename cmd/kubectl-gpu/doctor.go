package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/slice"
)

const doctorHelp = `Look for everything that is known to keep GPUs from pods, to give a GPU out twice, or to buy nodes in vain,
and print how to mend each.

It reads the cluster with your rights, changes nothing, and says what it may not see. What only a node can
tell, such as the configuration of its container runtime, it cannot see: each check says so in the documentation.

Exit code 0: no errors were found. 1: errors were found. 2: nothing could be looked at.`

// newDoctorCommand connects to a cluster only when it runs.
func newDoctorCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (*survey, error)) *cobra.Command {
	var o surveyOptions
	format := terminal.Tabular
	command := &cobra.Command{
		Use:     "doctor",
		Short:   "Find what keeps GPUs from pods, and say how to mend it",
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
			facts, err := s.facts(command.Context(), o)
			if err != nil {
				return err
			}
			return conclude(command, format, doctor.Examine(facts))
		},
	}
	flags := command.Flags()
	flags.StringVarP((*string)(&format), "output", "o", string(format), "how to print: table, json or yaml")
	flags.StringVar(&o.driver, "driver-name", slice.DefaultDriver, "the name under which Mica's driver publishes devices")
	flags.StringVar(&o.autoscalerNamespace, "cluster-autoscaler-namespace", autoscaler.Namespace, "the namespace of Cluster Autoscaler")
	flags.StringVar(&o.kueueNamespace, "kueue-namespace", "kueue-system", "the namespace of Kueue")
	return command
}

// conclude prints the report, and ends as the help says.
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
		return errors.New("nothing could be looked at: " + askFor)
	}
	if count := report.Count(doctor.Error); count > 0 {
		return no(fmt.Sprintf("%d findings are errors: mend them, and run kubectl gpu doctor again", count))
	}
	return nil
}
