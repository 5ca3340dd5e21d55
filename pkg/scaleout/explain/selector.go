package explain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/devices"
)

// near is the device that comes nearest to passing a selector.
type near struct {
	device *devices.Device
	// condition is the first that it fails, and fails their number.
	condition devices.Condition
	fails     int
	distance  float64
}

// nearest is the device that fails the fewest conditions. Among equals, its capacity comes nearest to the condition.
func (d *diagnosis) nearest(expression string, failed []*devices.Device) near {
	parts := d.selectors.Get(expression).Conditions
	var best near
	for _, dev := range failed {
		n := near{device: dev, condition: devices.Condition{Text: expression, Expression: expression}}
		for _, part := range parts {
			if got := d.evaluate(d.ctx, part.Expression, dev); got.matches {
				continue
			}
			if n.fails == 0 {
				n.condition = part
			}
			n.fails++
		}
		n.distance = min(float64(n.fails)-ratio(n.condition, dev), distanceError-distanceSelector-1)
		if best.device == nil || n.distance < best.distance {
			best = n
		}
	}
	return best
}

// compared returns the capacity and the quantity of a condition that compares one with the other.
func compared(c devices.Condition, d *devices.Device) (have, want resource.Quantity, ok bool) {
	if len(c.Reads) != 1 || len(c.Quantities) != 1 {
		return have, want, false
	}
	capacity := d.CapacityAt(c.Reads[0])
	want, err := resource.ParseQuantity(c.Quantities[0])
	if capacity == nil || err != nil || want.Sign() <= 0 || capacity.Value.Sign() <= 0 {
		return have, want, false
	}
	return capacity.Value, want, true
}

// ratio is how near the device comes to the condition's quantity, below 1; 0: unknown.
func ratio(c devices.Condition, d *devices.Device) float64 {
	have, want, ok := compared(c, d)
	if !ok {
		return 0
	}
	a, b := have.AsApproximateFloat64(), want.AsApproximateFloat64()
	return min(min(a, b)/max(a, b), 0.99)
}

// values are the device's values of the fields that the condition reads.
func (n near) values(failed int) string {
	who := n.device.Name + " has "
	if failed > 1 {
		who = "the nearest, " + n.device.Name + ", has "
	}
	const most = 3
	var parts []string
	for i, f := range n.condition.Reads {
		if i == most {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, say(n.device, f))
	}
	if len(parts) == 0 {
		return strings.TrimSuffix(who, " has ") + " does not"
	}
	return who + strings.Join(parts, ", ")
}

// trap is how far below a round number a GPU's memory may be for the number to be a trap: products are named for their
// memory before firmware takes some.
const trap = 0.9

// selectorHint suggests a selector in place of one that never matches.
func (d *diagnosis) selectorHint(n near) string {
	if hint := d.roundNumber(n); hint != "" {
		return hint
	}
	for _, word := range n.condition.Words {
		for _, f := range n.condition.Reads {
			a := n.device.AttributeAt(f)
			if a == nil || a.StringValue == nil || *a.StringValue == word {
				continue
			}
			if word != "" && strings.Contains(strings.ToLower(*a.StringValue), strings.ToLower(word)) {
				return fmt.Sprintf("%s is compared as a whole: write %q, or use matches() or lowerAscii().contains()", f.Name, *a.StringValue)
			}
		}
	}
	for _, f := range n.condition.Reads {
		if d.offer.imagined && n.device.Lacks(f) {
			return d.missing(f, n.device)
		}
	}
	return ""
}

// roundNumber suggests a quantity in place of one just above the GPU's. The device passes with it.
func (d *diagnosis) roundNumber(n near) string {
	have, want, ok := compared(n.condition, n.device)
	if !ok || have.Cmp(want) >= 0 || have.AsApproximateFloat64() < trap*want.AsApproximateFloat64() {
		return ""
	}
	written, better := n.condition.Quantities[0], rounded(have)
	trial := strings.Replace(n.condition.Expression, strconv.Quote(written), strconv.Quote(better), 1)
	if got := d.evaluate(d.ctx, trial, n.device); !got.matches {
		return ""
	}
	return fmt.Sprintf("%s is a round number: %s reports %s; write quantity(%q)", written, product(n.device), amount(have), better)
}

// product is the device's product name.
func product(d *devices.Device) string {
	return cmp.Or(ownText(d, "productName"), d.Name)
}

// supplied are attributes that spec.template of a GPUNodeGroup can have.
var supplied = map[string]bool{"driverVersion": true, "cudaDriverVersion": true}

// missing is the hint on a field that a device does not publish.
func (d *diagnosis) missing(f devices.Field, dev *devices.Device) string {
	switch {
	case d.offer.imagined && supplied[f.Name]:
		return fmt.Sprintf("before the node exists, its %s is known only if the GPUNodeGroup has spec.template.%s", f.Name, f.Name)
	case d.offer.imagined && f.Domain == dev.ID.Pool.Driver:
		return fmt.Sprintf("%s is unknown before the node exists: select by productName, memory or others", f.Name)
	default:
		return fmt.Sprintf("to skip devices without %s, write device.%s[%q].?%s", f.Name, f.Section, f.Domain, f.Name)
	}
}

// broken is the finding for an expression that fails on a device.
func (d *diagnosis) broken(expression string, dev *devices.Device, err error, whose string) *finding {
	f := &finding{
		Blocker: blockerSelectorError, Distance: distanceError,
		Text: fmt.Sprintf("%s `%s` cannot be evaluated on %s: %s", whose, oneLine(expression), dev.Name, oneLine(err.Error())),
	}
	for _, part := range d.selectors.Get(expression).Conditions {
		if d.evaluate(d.ctx, part.Expression, dev).err == nil {
			continue
		}
		for _, read := range part.Reads {
			if dev.Lacks(read) {
				f.Text = fmt.Sprintf("%s `%s` cannot be evaluated: %s publishes no %s", whose, part.Text, dev.Name, read.Name)
				if d.offer.imagined {
					f.Text = fmt.Sprintf("%s `%s` cannot be evaluated: the %s of %s is unknown", whose, part.Text, read.Name, dev.Name)
				}
				f.Hint = d.missing(read, dev)
				return f
			}
		}
	}
	return f
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
