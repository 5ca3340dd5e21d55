package allocation

import (
	"fmt"
	"io"
	"strings"

	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// Table writes what there is to say of a claim for people.
func Table(w io.Writer, screen terminal.Screen, c Claim) error {
	about := fmt.Sprintf("Claim %s/%s: %s", c.Namespace, c.Name, c.Outcome)
	if err := explain.Write(w, screen, about, c.Summary, c.Verdicts, c.More); err != nil || len(c.Devices) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	if err := screen.Write(w, inventory.GivenTable(c.Devices)); err != nil {
		return err
	}
	for _, remark := range inventory.Remarks(c.Devices) {
		if _, err := fmt.Fprintln(w, strings.Join(screen.Lines(remark, 0), "\n")); err != nil {
			return err
		}
	}
	return nil
}
