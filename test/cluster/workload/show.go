package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// show prints what the container has of GPUs: device nodes, environment, and
// what nvidia-smi says of them when there is one.
func show(out io.Writer) error {
	if err := showDevices(out); err != nil {
		return err
	}
	environment := os.Environ()
	slices.Sort(environment)
	for _, variable := range environment {
		if strings.HasPrefix(variable, "NVIDIA_") || strings.HasPrefix(variable, "CUDA_") {
			fmt.Fprintln(out, "env", variable)
		}
	}
	if err := showListing(out); err != nil {
		return err
	}
	// Who reads the log knows by this line that there is no more to come.
	fmt.Fprintln(out, "shown")
	return nil
}

func showListing(out io.Writer) error {
	smi, err := exec.LookPath("nvidia-smi")
	if errors.Is(err, exec.ErrNotFound) {
		fmt.Fprintln(out, "no nvidia-smi")
		return nil
	}
	listing, err := exec.Command(smi, "-L").CombinedOutput()
	fmt.Fprint(out, string(listing))
	if err != nil {
		return fmt.Errorf("running nvidia-smi -L: %w", err)
	}
	modes, err := exec.Command(smi, "--query-gpu=compute_mode", "--format=csv,noheader").CombinedOutput()
	if err != nil {
		return fmt.Errorf("asking nvidia-smi for the compute mode: %w: %s", err, modes)
	}
	for mode := range strings.Lines(string(modes)) {
		fmt.Fprint(out, "compute mode ", mode)
	}
	return nil
}

// showDevices prints the container's NVIDIA device nodes with their numbers.
func showDevices(out io.Writer) error {
	var nodes []string
	for _, pattern := range []string{"/dev/nvidia*", "/dev/nvidia-caps/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("listing %s: %w", pattern, err)
		}
		nodes = append(nodes, found...)
	}
	for _, node := range nodes {
		info, err := os.Stat(node)
		if err != nil {
			return fmt.Errorf("looking at a device: %w", err)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode()&os.ModeCharDevice == 0 {
			continue
		}
		fmt.Fprintf(out, "device %s %d:%d\n", node, major(stat.Rdev), minor(stat.Rdev))
	}
	if len(nodes) == 0 {
		fmt.Fprintln(out, "no device")
	}
	return nil
}

// major and minor take a device number apart (makedev(3)).
func major(device uint64) uint32 { return uint32(device>>8&0xfff | device>>32&^0xfff) }
func minor(device uint64) uint32 { return uint32(device&0xff | device>>12&^0xff) }

func cat(out io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return err
}

func list(out io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		fmt.Fprintln(out, entry.Name())
	}
	return err
}
