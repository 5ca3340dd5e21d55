package scaleout

import (
	"context"
	"fmt"
	"strings"

	"github.com/mica-gpu/mica/pkg/excerpt"
)

const (
	// mostReasons is of how many groups a sentence tells, longestReason how much of each, in bytes.
	mostReasons   = 4
	longestReason = 240
)

// why says what ends the growth: the groups that grow come first, then those that would if they
// could, and then those in which the pods do not fit.
func (c *count) why(ctx context.Context) string {
	switch {
	case c.because != "":
		return c.because
	case c.kind.aborts != "":
		return c.kind.aborts
	case len(c.groups) == 0:
		return "there are no node groups: create a GPUNodeGroup"
	}
	var grow, hold, unfit []string
	for _, g := range c.groups {
		switch why, fits := c.whyOf(ctx, g); {
		case g.growth() > 0 && fits:
			grow = append(grow, why)
		case fits:
			hold = append(hold, why)
		default:
			unfit = append(unfit, why)
		}
	}
	return sentence(append(append(grow, hold...), unfit...))
}

// whyOf says why there is no more room in a group, and whether a pod fits on its nodes as far as
// that is known.
func (c *count) whyOf(ctx context.Context, g *group) (string, bool) {
	if g.empty == nil {
		return fmt.Sprintf("group %s: %s", g.Name, g.barred()), true
	}
	filling, err := c.filling(ctx, g.empty, c.kind)
	if err != nil {
		return fmt.Sprintf("group %s: %s", g.Name, uncounted(err)), false
	}
	switch {
	case filling.miss != nil:
		return fmt.Sprintf("group %s does not fit: %s", g.Name, filling.miss.Text), false
	case !c.usable(g.empty.Object()):
		return fmt.Sprintf("group %s does not fit: %s", g.Name, systemTaint(g.empty.Object())), false
	case g.Max != nil && g.Size >= *g.Max:
		return fmt.Sprintf("group %s is at its maximum of %s", g.Name, nodes(*g.Max)), true
	case g.Closed != "":
		return fmt.Sprintf("group %s may not grow now: %s", g.Name, g.Closed), true
	case g.Advised:
		return fmt.Sprintf("group %s is made to grow by nobody but its operator", g.Name), true
	case g.full():
		return fmt.Sprintf("group %s is at its maximum of %s, %d of which this plan asks for", g.Name, nodes(*g.Max), g.opened), true
	case g.Max == nil:
		return fmt.Sprintf("group %s has no maximum, and room is counted up to %d", g.Name, MaxSupply), true
	}
	return fmt.Sprintf("group %s may grow to its maximum of %s", g.Name, nodes(*g.Max)), true
}

// sentence joins what is said of groups, of the first of them only.
func sentence(reasons []string) string {
	told := reasons[:min(len(reasons), mostReasons)]
	for i, reason := range told {
		told[i] = excerpt.Of(reason, longestReason)
	}
	text := strings.Join(told, "; ")
	switch more := len(reasons) - len(told); more {
	case 0:
		return text
	case 1:
		return text + "; and 1 other group"
	default:
		return fmt.Sprintf("%s; and %d other groups", text, more)
	}
}
