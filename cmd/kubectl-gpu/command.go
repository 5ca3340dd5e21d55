package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/release"
)

func newCommand() *cobra.Command {
	// cli-runtime would bring kubectl's flags, but also kustomize and its loader of Go plugins, which
	// keeps the linker from dropping unused code.
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	overrides := &clientcmd.ConfigOverrides{}
	command := &cobra.Command{
		Use:           "kubectl-gpu",
		Short:         "Show GPUs and the pods that hold them, explain why pods wait for them, and find what keeps them from pods",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu"},
	}
	bindKubeconfigFlags(command.PersistentFlags(), rules, overrides)
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	command.AddCommand(
		newCordonCommand(config, newClient),
		newUncordonCommand(config, newClient),
		newListCommand(config, newClient),
		newTopCommand(config, newClient),
		newDoctorCommand(config, newSurvey),
		newExplainCommand(config),
		newScaledObjectCommand(config, newClient),
		release.NewCommand(version()),
	)
	command.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help for its flags", err, c.CommandPath())
	})
	addCompletions(command, config)
	return command
}
