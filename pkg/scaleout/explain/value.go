package explain

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

const (
	kibi = 1 << 10
	mebi = 1 << 20
	gibi = 1 << 30
)

// amount is a quantity in Gi, with the exact one: 79.25Gi (81152Mi).
func amount(q resource.Quantity) string {
	exact := q.String()
	bytes := q.AsApproximateFloat64()
	if q.Format != resource.BinarySI || bytes < gibi || strings.HasSuffix(exact, "Gi") || strings.HasSuffix(exact, "Ti") {
		return exact
	}
	return fmt.Sprintf("%sGi (%s)", decimal(bytes/gibi), exact)
}

// decimal has two places at most, rounded down.
func decimal(value float64) string {
	return strconv.FormatFloat(math.Floor(value*100)/100, 'f', -1, 64)
}

// rounded is a quantity rounded down to a whole number of Gi, Mi or Ki.
func rounded(q resource.Quantity) string {
	value := q.Value()
	switch {
	case value >= gibi:
		return fmt.Sprintf("%dGi", value/gibi)
	case value >= mebi:
		return fmt.Sprintf("%dMi", value/mebi)
	case value >= kibi:
		return fmt.Sprintf("%dKi", value/kibi)
	default:
		return strconv.FormatInt(value, 10)
	}
}

// say is the name and the value of a device's field.
func say(d *devices.Device, f devices.Field) string {
	switch f.Section {
	case devices.SectionAttributes:
		if attribute := d.AttributeAt(f); attribute != nil {
			return f.Name + " " + attributeText(*attribute)
		}
	case devices.SectionCapacity:
		if capacity := d.CapacityAt(f); capacity != nil {
			return f.Name + " " + amount(capacity.Value)
		}
	case devices.SectionDriver:
		return "driver " + strconv.Quote(d.ID.Pool.Driver)
	default:
		return fmt.Sprintf("%s %t", f.Section, d.Shared())
	}
	return "no " + f.Name
}

// ownText is a string attribute in the domain of the device's driver, or empty.
func ownText(d *devices.Device, name string) string {
	a := d.AttributeAt(devices.Field{Section: devices.SectionAttributes, Domain: d.ID.Pool.Driver, Name: name})
	if a == nil {
		return ""
	}
	return ptr.Deref(a.StringValue, "")
}

// attributeText is the value as in CEL.
func attributeText(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return strconv.Quote(*a.StringValue)
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	case a.StringValues != nil:
		return fmt.Sprintf("%q", a.StringValues)
	case a.VersionValues != nil:
		return fmt.Sprint(a.VersionValues)
	case a.IntValues != nil:
		return fmt.Sprint(a.IntValues)
	default:
		return fmt.Sprint(a.BoolValues)
	}
}

// tally counts words, the most frequent first: 8 gpu, 2 mig.
func tally(words []string) string {
	numbers := map[string]int{}
	var distinct []string
	for _, word := range words {
		if numbers[word] == 0 {
			distinct = append(distinct, word)
		}
		numbers[word]++
	}
	slices.Sort(distinct)
	slices.SortStableFunc(distinct, func(a, b string) int { return numbers[b] - numbers[a] })
	const most = 5
	var parts []string
	for i, word := range distinct {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(distinct)-most))
			break
		}
		parts = append(parts, fmt.Sprintf("%d %s", numbers[word], word))
	}
	return strings.Join(parts, ", ")
}
