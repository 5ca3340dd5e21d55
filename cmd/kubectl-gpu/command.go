package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/release"
)

func newCommand() *cobra.Command {
	// kubectl's own flags would come from cli-runtime, with kustomize and its loader of Go
	// plugins, for which the linker keeps everything.
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	overrides := &clientcmd.ConfigOverrides{}
	command := &cobra.Command{
		Use:           "kubectl-gpu",
		Short:         "Show GPUs and who has them, explain why pods wait for them, and find what keeps them from pods",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu"},
	}
	bindKubeconfigFlags(command.PersistentFlags(), rules, overrides)
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	command.AddCommand(newCordonCommand(config, newClient), newUncordonCommand(config, newClient))
	command.AddCommand(
		newListCommand(config, newFleet),
		newTopCommand(config, newClient),
		newDoctorCommand(config, newSurvey),
		newExplainCommand(config),
		newSimulateCommand(config, newReader),
		newSlicesCommand(),
		newScaledObjectCommand(config, newClient),
		newMigrateCommand(config, newReader),
		newRightsizeCommand(config, newReader),
		release.NewCommand(version()),
	)
	command.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help for its flags", err, c.CommandPath())
	})
	addCompletions(command, config)
	return command
}
