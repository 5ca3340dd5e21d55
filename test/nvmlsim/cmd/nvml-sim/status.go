package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func printState(to io.Writer, state model.State) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "simulated machine %s, driver %s, CUDA %s, %d clients\n\n",
		state.Machine, state.DriverVersion, state.CUDADriverVersion, state.Sessions)
	fmt.Fprintln(w, "GPU\tMINOR\tPRODUCT\tPCI BUS ID\tUUID\tCOMPUTE MODE\tMIG\tSTATE")
	for _, gpu := range state.GPUs {
		presence := "present"
		if gpu.Lost {
			presence = "lost"
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", gpu.Index, gpu.Minor, gpu.ProductName,
			gpu.PCIBusID, gpu.UUID, gpu.ComputeMode, gpu.MIGMode, presence)
	}
	for _, l := range state.Latencies {
		fmt.Fprintf(w, "\n%s takes %s", l.Function, l.Latency)
	}
	for _, f := range state.Failures {
		fmt.Fprintf(w, "\n%s fails with %d (%s)", f.Function, f.Return, f.Return)
		if f.GPU != nil {
			fmt.Fprintf(w, " on GPU %d", *f.GPU)
		}
		if f.Times > 0 {
			fmt.Fprintf(w, ", %d more times", f.Times)
		}
	}
	if len(state.Latencies)+len(state.Failures) > 0 {
		fmt.Fprintln(w)
	}
	return w.Flush()
}
