package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/kubectl/cordon"
)

const (
	// completionTimeout is how long somebody waits who has pressed the tabulator.
	completionTimeout = 2 * time.Second
	// mostCompletions are read of what could be meant.
	mostCompletions = 500
)

// completion gives what could stand in a place of the command line.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// namesOf completes names of objects of the core API, those in the namespace that was given if they are in one, each
// after a prefix such as pod/. Who may not list them gets none, as nobody reads errors there.
func namesOf(config clientcmd.ClientConfig, kind string, namespaced bool, prefix string) completion {
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && namespaced {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, stop := context.WithTimeout(command.Context(), completionTimeout)
		defer stop()
		options := []client.ListOption{client.Limit(mostCompletions)}
		if namespaced {
			namespace, _, err := config.Namespace()
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			options = append(options, client.InNamespace(namespace))
		}
		reader, err := newReader(config)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind + "List"})
		if err := reader.List(ctx, &list, options...); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for i := range list.Items {
			if name := prefix + list.Items[i].Name; strings.HasPrefix(name, begun) {
				names = append(names, name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// addCompletions lets shells complete what the flags and arguments of all commands name.
func addCompletions(root *cobra.Command, config clientcmd.ClientConfig) {
	complete := func(command *cobra.Command, flag string, how completion) {
		if err := command.RegisterFlagCompletionFunc(flag, how); err != nil {
			panic(err) // a flag that is not there
		}
	}
	oneOf := func(texts ...string) completion {
		return cobra.FixedCompletions(texts, cobra.ShellCompDirectiveNoFileComp)
	}
	complete(root, clientcmd.FlagNamespace, namesOf(config, "Namespace", false, ""))
	for _, command := range root.Commands() {
		switch command.Name() {
		case "explain":
			command.ValidArgsFunction = namesOf(config, "Pod", true, "pod/")
		case "list":
			complete(command, "node", namesOf(config, "Node", false, ""))
			complete(command, "output", oneOf("table", "wide", "json", "yaml"))
		case "simulate", "slices":
			complete(command, "output", oneOf("table", "wide", "json", "yaml"))
		case "top":
			complete(command, "sort-by", oneOf("name", "utilization", "memory"))
			complete(command, "output", oneOf("table", "json", "yaml"))
		case "doctor", "rightsize":
			complete(command, "output", oneOf("table", "json", "yaml"))
		case "migrate":
			complete(command, "output", oneOf(outputManifests, outputReport, outputJSON))
		case "cordon":
			command.ValidArgsFunction = cordonedNames(config)
			complete(command, "effect", oneOf("NoSchedule", "NoExecute", "None"))
			complete(command, "output", oneOf("table", "json", "yaml"))
		case "uncordon":
			command.ValidArgsFunction = cordonedNames(config)
		}
	}
}

// cordonedNames completes gpu and node, and the names of nodes. GPUs are in ResourceSlices, which are too large to read
// while somebody waits.
func cordonedNames(config clientcmd.ClientConfig) completion {
	nodes := namesOf(config, "Node", false, "")
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return []string{cordon.OfGPU, cordon.OfNode}, cobra.ShellCompDirectiveNoFileComp
		case len(args) == 1 && args[0] == cordon.OfNode:
			return nodes(command, args, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
