package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func printState(to io.Writer, state model.State) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "simulated machine %s, driver %s, CUDA %s, %d clients\n",
		state.Machine, state.Driver.Library, state.CUDADriverVersion, state.Sessions)
	if state.Driver.Module != state.Driver.Library {
		fmt.Fprintf(w, "kernel module: %s\n", state.Driver.Module)
	}
	if state.Fabric != "" {
		fmt.Fprintf(w, "fabric manager: %s\n", state.Fabric)
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "GPU\tMINOR\tPRODUCT\tPCI BUS ID\tUUID\tCOMPUTE MODE\tTIME SLICE\tMIG\tSTATE")
	for _, gpu := range state.GPUs {
		presence := model.Present
		switch {
		case gpu.Lost:
			presence = model.Lost
		case gpu.Absent:
			presence = model.Absent
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", gpu.Index, gpu.Minor, gpu.ProductName,
			gpu.PCIBusID, gpu.UUID, gpu.ComputeMode, gpu.Timeslice, migMode(gpu), presence)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if slices.ContainsFunc(state.GPUs, func(g model.GPUState) bool { return len(g.Instances) > 0 }) {
		fmt.Fprintln(to)
		if err := printInstances(to, state); err != nil {
			return err
		}
	}
	printProcesses(to, state)
	printUse(to, state)
	printInjected(to, state)
	return nil
}

// printCalls shows the function that was called most first.
func printCalls(to io.Writer, calls model.Calls) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	functions := slices.SortedFunc(maps.Keys(calls), func(a, b string) int {
		return cmp.Or(cmp.Compare(calls[b], calls[a]), cmp.Compare(a, b))
	})
	for _, function := range functions {
		fmt.Fprintf(w, "%d\t%s\n", calls[function], function)
	}
	fmt.Fprintf(w, "%d\tin all\n", calls.Total())
	return w.Flush()
}

func printProcesses(to io.Writer, state model.State) {
	if slices.ContainsFunc(state.GPUs, func(g model.GPUState) bool { return len(g.Processes) > 0 }) {
		fmt.Fprintln(to)
	}
	for _, gpu := range state.GPUs {
		for _, p := range gpu.Processes {
			fmt.Fprintf(to, "process %d (%s) computes on %s of GPU %d\n", p.PID, p.Name, p.Device, gpu.Index)
		}
	}
}

func migMode(gpu model.GPUState) string {
	if gpu.PendingMIGMode != gpu.MIGMode {
		return gpu.MIGMode + ", pending " + gpu.PendingMIGMode
	}
	return gpu.MIGMode
}

func printInjected(to io.Writer, state model.State) {
	when := map[bool]string{false: "", true: " after its effect"}
	if len(state.Latencies)+len(state.Failures) > 0 {
		fmt.Fprintln(to)
	}
	for _, l := range state.Latencies {
		fmt.Fprintf(to, "%s takes %s%s\n", l.Function, l.Latency, when[l.After])
	}
	for _, f := range state.Failures {
		fmt.Fprintf(to, "%s fails with %d (%s)%s", f.Function, f.Return, f.Return, when[f.After])
		if f.GPU != nil {
			fmt.Fprintf(to, " on GPU %d", *f.GPU)
		}
		if f.Times > 0 {
			fmt.Fprintf(to, ", %d more times", f.Times)
		}
		fmt.Fprintln(to)
	}
	for _, c := range state.SlowCalls {
		fmt.Fprintf(to, "a call of %s is waiting%s", c.Function, when[c.After])
		if c.GPU != nil {
			fmt.Fprintf(to, " on GPU %d", *c.GPU)
		}
		fmt.Fprintln(to)
	}
}

func printInstances(to io.Writer, state model.State) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tGI\tCI\tDEVICE\tPROFILE\tPLACEMENT\tUUID\tSTATE")
	for _, gpu := range state.GPUs {
		for _, gi := range gpu.Instances {
			use := "free"
			if gi.InUse {
				use = "in use"
			}
			placement := fmt.Sprintf("%d:%d", gi.Start, gi.Size)
			if len(gi.ComputeInstances) == 0 {
				fmt.Fprintf(w, "%d\t%d\t-\t-\t%s\t%s\t-\t%s\n", gpu.Index, gi.ID, gi.Profile, placement, use)
			}
			for _, ci := range gi.ComputeInstances {
				fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", gpu.Index, gi.ID, ci.ID, ci.Index, ci.Profile, placement, ci.UUID, use)
			}
		}
	}
	return w.Flush()
}

func printUse(to io.Writer, state model.State) {
	say := func(what string, use model.UseState) {
		if use != (model.UseState{}) {
			fmt.Fprintf(to, "%s is %d%% utilised, with %d MiB of its memory taken\n", what, use.Utilization, use.MemoryBytes>>20)
		}
	}
	for _, gpu := range state.GPUs {
		say(fmt.Sprintf("GPU %d", gpu.Index), gpu.Use)
		for _, gi := range gpu.Instances {
			say(fmt.Sprintf("GPU instance %d of GPU %d", gi.ID, gpu.Index), gi.Use)
		}
	}
}
