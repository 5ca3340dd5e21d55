package cordon

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// Report is the output of a cordon.
type Report struct {
	Target Target
	Effect resourceapi.DeviceTaintEffect
	Rules  []resourceapi.DeviceTaintRule
	// DryRun reports whether the rules were only planned.
	DryRun bool
	// NotSeen says which claims the user may not see.
	NotSeen []string
}

// Write prints what happens to new claims, and to those with devices of the target.
func (r Report) Write(w io.Writer, screen terminal.Screen) error {
	lines := screen.Lines(r.sentence(), 0)
	for _, text := range r.NotSeen {
		lines = append(lines, screen.Lines("Not seen: "+text+".", 0)...)
	}
	held := r.Target.Held()
	lines = append(lines, screen.Lines(r.fate(claimsOf(held)), 0)...)
	if len(held) > 0 {
		lines = append(lines, "")
	}
	if _, err := fmt.Fprintln(w, strings.Join(lines, "\n")); err != nil {
		return err
	}
	t := terminal.Table{Columns: []terminal.Column{{Title: "NAMESPACE"}, {Title: "CLAIM"}, {Title: "DEVICE"}, {Title: "PODS", Wrapped: true}}}
	for _, hold := range held {
		t.Rows = append(t.Rows, terminal.Texts(hold.Namespace, hold.Claim, hold.Device, cmp.Or(strings.Join(hold.Pods, ", "), "-")))
	}
	return screen.Write(w, t)
}

// claimsOf counts claims, which may have several devices.
func claimsOf(held []fleet.Holding) int {
	claims := map[types.NamespacedName]bool{}
	for _, hold := range held {
		claims[types.NamespacedName{Namespace: hold.Namespace, Name: hold.Claim}] = true
	}
	return len(claims)
}

func (r Report) sentence() string {
	by := fmt.Sprintf("%s, effect %s", excerpt.Count(len(r.Rules), "DeviceTaintRule"), r.Effect)
	none := r.Effect == resourceapi.DeviceTaintEffectNone
	text := upper(r.Target.String())
	switch {
	case r.DryRun && none:
		return fmt.Sprintf("%s would stay as it is, and the rules would report what NoExecute would do (%s).", text, by)
	case r.DryRun:
		return fmt.Sprintf("%s would get no new claims (%s). Nothing was created.", text, by)
	case none:
		return fmt.Sprintf("%s stays as it is; the rules report in their status what NoExecute would do (%s): run kubectl get devicetaintrules -l %s -o yaml", text, by, Label)
	}
	return fmt.Sprintf("%s gets no new claims (%s).", text, by)
}

// fate says what happens to the claims with devices of the target.
func (r Report) fate(held int) string {
	claims := excerpt.Count(held, "claim")
	const evicted = "regardless of PodDisruptionBudgets, unless their claims tolerate the taint"
	switch {
	case held == 0 && len(r.NotSeen) > 0:
		return "None of the visible claims has it now."
	case held == 0:
		return "No claim has it now."
	case r.Effect == resourceapi.DeviceTaintEffectNone:
		return fmt.Sprintf("NoExecute would evict the pods of %s, %s:", claims, evicted)
	case r.Effect == resourceapi.DeviceTaintEffectNoExecute && r.DryRun:
		return fmt.Sprintf("The pods of %s would be evicted, %s:", claims, evicted)
	case r.Effect == resourceapi.DeviceTaintEffectNoExecute:
		return fmt.Sprintf("The pods of %s are evicted, %s:", claims, evicted)
	}
	return fmt.Sprintf("The pods of %s keep it until they end:", claims)
}

func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
