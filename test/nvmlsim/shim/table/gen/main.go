// Command gen writes the shim's table of functions from the NVML header. It
// runs in the directory of package table.
package main

import (
	"fmt"
	"os"

	"github.com/mica-gpu/mica/test/nvmlsim/shim/table"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	header, err := table.ReadHeader()
	if err != nil {
		return err
	}
	text, err := table.Render(header, wire.Functions(), wire.Extensions())
	if err != nil {
		return err
	}
	return os.WriteFile("../zz_generated.functions.inc", text, 0o644)
}
