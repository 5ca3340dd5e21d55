package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/kubectl/cordon"
)

// completionTimeout bounds the wait after the Tab key.
const completionTimeout = 2 * time.Second

var (
	podKind   = corev1.SchemeGroupVersion.WithKind("Pod")
	nodeKind  = corev1.SchemeGroupVersion.WithKind("Node")
	claimKind = resourceapi.SchemeGroupVersion.WithKind("ResourceClaim")
)

// completion completes an argument or a flag.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// namesOf completes names of objects with a prefix such as pod/. Errors give no names, because a shell
// shows no errors of completions.
func namesOf(config clientcmd.ClientConfig, kind schema.GroupVersionKind, namespaced bool, prefix string) completion {
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		const nothingElse = cobra.ShellCompDirectiveNoFileComp
		namespace := ""
		if namespaced {
			var err error
			if namespace, _, err = config.Namespace(); err != nil || len(args) > 0 {
				return nil, nothingElse
			}
		}
		ctx, stop := context.WithTimeout(command.Context(), completionTimeout)
		defer stop()
		reader, err := newClient(config)
		if err != nil {
			return nil, nothingElse
		}
		all, err := namesIn(ctx, reader, kind, namespace)
		if err != nil {
			return nil, nothingElse
		}
		var names []string
		for _, name := range all {
			if name = prefix + name; strings.HasPrefix(name, begun) {
				names = append(names, name)
			}
		}
		return names, nothingElse
	}
}

// podOrClaim completes pods, and claims after the first letters of claim/.
func podOrClaim(config clientcmd.ClientConfig) completion {
	const claim = "claim/"
	pods, claims := namesOf(config, podKind, true, "pod/"), namesOf(config, claimKind, true, claim)
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if begun != "" && strings.HasPrefix(claim, begun[:min(len(begun), len(claim))]) {
			return claims(command, args, begun)
		}
		return pods(command, args, begun)
	}
}

// addCompletions registers completions for the flags and arguments of all commands.
func addCompletions(root *cobra.Command, config clientcmd.ClientConfig) {
	complete := func(command *cobra.Command, flag string, how completion) {
		if err := command.RegisterFlagCompletionFunc(flag, how); err != nil {
			panic(err) // no such flag
		}
	}
	oneOf := func(texts ...string) completion {
		return cobra.FixedCompletions(texts, cobra.ShellCompDirectiveNoFileComp)
	}
	complete(root, clientcmd.FlagNamespace, namesOf(config, corev1.SchemeGroupVersion.WithKind("Namespace"), false, ""))
	for _, command := range root.Commands() {
		switch command.Name() {
		case "explain":
			command.ValidArgsFunction = podOrClaim(config)
			complete(command, "output", oneOf("table", "json", "yaml"))
			complete(command, "template", oneOf(catalog.InstanceTypes()...))
		case "list":
			complete(command, "node", namesOf(config, nodeKind, false, ""))
			complete(command, "output", oneOf("table", "wide", "json", "yaml"))
		case "top":
			complete(command, "sort-by", oneOf("name", "utilization", "memory"))
			complete(command, "output", oneOf("table", "json", "yaml"))
		case "doctor":
			complete(command, "output", oneOf("table", "json", "yaml"))
		case "cordon":
			command.ValidArgsFunction = cordonedNames(config)
			complete(command, "effect", oneOf("NoSchedule", "NoExecute", "None"))
			complete(command, "output", oneOf("table", "json", "yaml"))
		case "uncordon":
			command.ValidArgsFunction = cordonedNames(config)
		}
	}
}

// cordonedNames completes gpu, node and the names of nodes. It does not complete GPUs, because reading
// ResourceSlices takes too long.
func cordonedNames(config clientcmd.ClientConfig) completion {
	nodes := namesOf(config, nodeKind, false, "")
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
