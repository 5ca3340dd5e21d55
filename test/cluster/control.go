package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/cluster/internal/image"
	"github.com/mica-gpu/mica/test/cluster/internal/keeper"
	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/supervisor"
)

func newInfoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Print where the running cluster has its files",
		Args:  cobra.NoArgs,
	}
	dir := dirFlag(cmd)
	format := cmd.Flags().StringP("output", "o", "json", "json or env")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		info, err := supervisor.LoadInfo(layout.Dir(*dir))
		if err != nil {
			return absent(layout.Dir(*dir), err)
		}
		switch *format {
		case "json":
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(info)
		case "env":
			for _, variable := range info.Environment() {
				fmt.Fprintf(cmd.OutOrStdout(), "%s=%s\n", variable.Name, quote(variable.Value))
			}
			return nil
		}
		return fmt.Errorf("-o %s: there are json and env", *format)
	}
	return cmd
}

// quote makes a value one word of a shell.
func quote(value string) string { return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'" }

// absent explains why a cluster could not be asked, when the reason is that it
// is not there.
func absent(dir layout.Dir, err error) error {
	running, runningErr := keeper.Running(dir)
	if running || runningErr != nil {
		return errors.Join(err, runningErr)
	}
	if _, statErr := os.Stat(dir.Failure()); statErr == nil {
		return fmt.Errorf("the cluster in %s has stopped by itself: the reason is in %s, and `cluster up` starts another", dir, dir.Failure())
	}
	return fmt.Errorf("no cluster runs in %s: `cluster up` starts one", dir)
}

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the cluster's components",
		Args:  cobra.NoArgs,
	}
	dir := dirFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reply, err := supervisor.Ask(layout.Dir(*dir), supervisor.Request{Verb: "status"})
		if err != nil {
			return absent(layout.Dir(*dir), err)
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "COMPONENT\tRUNNING\tAGE\tLOG")
		for _, c := range reply.Components {
			fmt.Fprintf(table, "%s\t%t\t%s\t%s\n", c.Name, c.Running, time.Since(c.Started).Round(time.Second), c.Log)
		}
		return table.Flush()
	}
	return cmd
}

// newComponentCommand makes the command for a verb of the control socket.
func newComponentCommand(verb, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:       verb + " kubelet|containerd",
		Short:     short,
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{"kubelet", "containerd"},
	}
	dir := dirFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if _, err := supervisor.Ask(layout.Dir(*dir), supervisor.Request{Verb: verb, Component: args[0]}); err != nil {
			return absent(layout.Dir(*dir), err)
		}
		return nil
	}
	return cmd
}

func newImageCommand() *cobra.Command {
	var recipe image.Recipe
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Assemble a container image from binaries and this machine's glibc",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVar(&recipe.Name, "name", "", "the image's whole name, such as mica.local/kubelet-plugin:dev")
	cmd.Flags().StringArrayVar(&recipe.Binaries, "binary", nil, "a binary to put into /usr/bin; the first one is the entrypoint")
	cmd.Flags().StringArrayVar(&recipe.Entrypoint, "entrypoint", nil, "another entrypoint, an argument a flag")
	cmd.Flags().BoolVar(&recipe.Glibc, "glibc", false, "put this machine's glibc into it even if no binary needs it: for libraries that containers are given")
	out := cmd.Flags().String("out", "", "the archive to write")
	for _, flag := range []string{"name", "binary", "out"} {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // A flag that is not defined three lines above.
		}
	}
	cmd.RunE = func(*cobra.Command, []string) error { return recipe.Write(*out) }
	return cmd
}

func newLoadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "load FILE...",
		Short: "Import image archives into the running cluster",
		Args:  cobra.MinimumNArgs(1),
	}
	dir := dirFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, archives []string) error {
		spec, err := supervisor.LoadSpec(layout.Dir(*dir))
		if err != nil {
			return absent(layout.Dir(*dir), err)
		}
		for _, archive := range archives {
			path, err := filepath.Abs(archive)
			if err != nil {
				return fmt.Errorf("reading the archive's path: %w", err)
			}
			if err := supervisor.Import(cmd.Context(), spec.Binaries["ctr"], spec.Dir, path); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func newTagCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tag IMAGE NAME",
		Short: "Give an image of the running cluster another name as well",
		Args:  cobra.ExactArgs(2),
	}
	dir := dirFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		spec, err := supervisor.LoadSpec(layout.Dir(*dir))
		if err != nil {
			return absent(layout.Dir(*dir), err)
		}
		return supervisor.Tag(cmd.Context(), spec.Binaries["ctr"], spec.Dir, args[0], args[1])
	}
	return cmd
}
