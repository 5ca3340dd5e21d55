package explain

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// near is the device that came nearest to passing a selector.
type near struct {
	device *device
	// condition is the first that it fails, of fails.
	condition conjunct
	fails     int
	distance  float64
}

// nearest looks for the device that fails the fewest conditions, and of those the one whose
// capacity comes nearest to what is asked.
func (d *diagnosis) nearest(expression string, failed []*device) near {
	parts := d.conjuncts(expression)
	var best near
	for _, dev := range failed {
		n := near{device: dev, condition: conjunct{text: expression, expression: expression}}
		for _, part := range parts {
			if got := d.evaluate(d.ctx, part.expression, dev); got.matches {
				continue
			}
			if n.fails == 0 {
				n.condition = part
			}
			n.fails++
		}
		n.distance = min(float64(n.fails)-n.condition.ratio(dev), distanceError-distanceSelector-1)
		if best.device == nil || n.distance < best.distance {
			best = n
		}
	}
	return best
}

// compared is the one capacity and the one quantity that a condition is about.
func (c conjunct) compared(d *device) (have, want resource.Quantity, ok bool) {
	if len(c.reads) != 1 || c.reads[0].section != sectionCapacity || len(c.quantities) != 1 {
		return have, want, false
	}
	capacity := d.capacity(c.reads[0])
	want, err := resource.ParseQuantity(c.quantities[0])
	if capacity == nil || err != nil || want.Sign() <= 0 || capacity.Value.Sign() <= 0 {
		return have, want, false
	}
	return capacity.Value, want, true
}

// ratio is how near the device comes to what the condition asks, below 1; 0: that is not known.
func (c conjunct) ratio(d *device) float64 {
	have, want, ok := c.compared(d)
	if !ok {
		return 0
	}
	a, b := have.AsApproximateFloat64(), want.AsApproximateFloat64()
	return min(min(a, b)/max(a, b), 0.99)
}

// values says what the device has of what the condition looks at.
func (n near) values(failed int) string {
	who := n.device.Name + " has "
	if failed > 1 {
		who = "the nearest, " + n.device.Name + ", has "
	}
	const most = 3
	var parts []string
	for i, f := range n.condition.reads {
		if i == most {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, f.say(n.device))
	}
	if len(parts) == 0 {
		return strings.TrimSuffix(who, " has ") + " does not"
	}
	return who + strings.Join(parts, ", ")
}

// trap is how far below a round number a GPU's memory may be for the number to be a trap:
// firmware takes some, and products are named for what there would be without.
const trap = 0.9

// selectorHint knows what people mean when they write what never matches.
func (d *diagnosis) selectorHint(n near) string {
	if hint := d.roundNumber(n); hint != "" {
		return hint
	}
	for _, word := range n.condition.words {
		for _, f := range n.condition.reads {
			a := n.device.attribute(f)
			if f.section != sectionAttributes || a == nil || a.StringValue == nil || *a.StringValue == word {
				continue
			}
			if word != "" && strings.Contains(strings.ToLower(*a.StringValue), strings.ToLower(word)) {
				return fmt.Sprintf("%s is compared as a whole: write %q, or use matches or lowerAscii().contains()", f.name, *a.StringValue)
			}
		}
	}
	for _, f := range n.condition.reads {
		if d.offer.Imagined && f.lackedBy(n.device) {
			return d.missing(f, n.device)
		}
	}
	return ""
}

// roundNumber names a quantity that is just above what the GPU has, and the one to write,
// which has been tried.
func (d *diagnosis) roundNumber(n near) string {
	have, want, ok := n.condition.compared(n.device)
	if !ok || have.Cmp(want) >= 0 || have.AsApproximateFloat64() < trap*want.AsApproximateFloat64() {
		return ""
	}
	written, better := n.condition.quantities[0], rounded(have)
	trial := strings.Replace(n.condition.expression, strconv.Quote(written), strconv.Quote(better), 1)
	if got := d.evaluate(d.ctx, trial, n.device); !got.matches {
		return ""
	}
	return fmt.Sprintf("%s is a round number: %s reports %s; write quantity(%q)", written, product(n.device), amount(have), better)
}

// product is what people call the device.
func product(d *device) string {
	name := d.attribute(field{sectionAttributes, d.driver(), "productName"})
	if name == nil || name.StringValue == nil {
		return d.Name
	}
	return *name.StringValue
}

// supplied are attributes that a group's template can have although no node exists.
var supplied = map[string]bool{"driverVersion": true, "cudaDriverVersion": true}

// missing says what can be done about what a device does not publish.
func (d *diagnosis) missing(f field, dev *device) string {
	switch {
	case d.offer.Imagined && supplied[f.name]:
		return fmt.Sprintf("before the node exists its %s is only known if the GPUNodeGroup says it in spec.template.%s", f.name, f.name)
	case d.offer.Imagined && f.domain == dev.driver():
		return fmt.Sprintf("%s is not known before the node exists: select by what is, such as productName or memory", f.name)
	default:
		return fmt.Sprintf("a device without %s is passed over by device.%s[%q].?%s", f.name, f.section, f.domain, f.name)
	}
}

// broken is said of an expression that cannot be evaluated on a device.
func (d *diagnosis) broken(expression string, dev *device, err error, whose string) *Finding {
	f := &Finding{
		Blocker: BlockerSelectorError, Distance: distanceError,
		Text: fmt.Sprintf("%s `%s` cannot be evaluated on %s: %s", whose, oneLine(expression), dev.Name, oneLine(err.Error())),
	}
	for _, part := range d.conjuncts(expression) {
		if d.evaluate(d.ctx, part.expression, dev).err == nil {
			continue
		}
		for _, read := range part.reads {
			if read.lackedBy(dev) {
				f.Text = fmt.Sprintf("%s `%s` cannot be evaluated: %s publishes no %s", whose, part.text, dev.Name, read.name)
				if d.offer.Imagined {
					f.Text = fmt.Sprintf("%s `%s` cannot be evaluated: of %s no %s is known", whose, part.text, dev.Name, read.name)
				}
				f.Hint = d.missing(read, dev)
				return f
			}
		}
	}
	return f
}

// oneLine makes a text fit for a sentence.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
