package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/cluster/internal/build"
	"github.com/mica-gpu/mica/test/cluster/internal/launch"
)

func newBuildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build [NAME...]",
		Short: "Build what the cluster runs, or the named groups and binaries, into the cache",
		RunE: func(cmd *cobra.Command, names []string) error {
			out := cmd.OutOrStdout()
			cache, err := newCache(out)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				names = launch.Groups
			}
			if names, err = build.Names(names); err != nil {
				return err
			}
			cache.Started = func(missing, present int) {
				fmt.Fprintf(out, "%d to build, %d reused from %s\n", missing, present, cache.Root)
			}
			cache.Built = func(name string) { fmt.Fprintf(out, "built %s\n", name) }
			// What is interrupted leaves no half of a binary.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			_, err = cache.Build(ctx, build.Groups(), names...)
			return err
		},
	}
}

func newToolCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tool NAME",
		Short: "Print the path of one binary, which is built first when the cache does not hold it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cache, err := newCache(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			path, err := cache.Binary(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		},
	}
}

func newCache(progress io.Writer) (*build.Cache, error) {
	source, err := sourceDir()
	if err != nil {
		return nil, err
	}
	root, err := build.DefaultRoot()
	if err != nil {
		return nil, err
	}
	return &build.Cache{Source: source, Root: root, Progress: progress}, nil
}

// repositoryRoot is the checkout that this program belongs to: the first
// directory above the executable, else above the working directory, that has
// the modules of the binaries.
func repositoryRoot() (string, error) {
	var starts []string
	if executable, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(executable))
	}
	if cwd, err := os.Getwd(); err == nil {
		starts = append(starts, cwd)
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "test/cluster/build/cluster/go.mod")); err == nil {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("no checkout with test/cluster/build is above this program or the working directory: run it inside one")
}

func sourceDir() (string, error) {
	root, err := repositoryRoot()
	return filepath.Join(root, "test/cluster"), err
}
