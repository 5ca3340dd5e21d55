package pair

import (
	"fmt"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func (a CreatePlaceholder) String() string {
	return fmt.Sprintf("create placeholder %s for a node of %s", a.Pod.Name, a.Pod.Labels[v1alpha1.LabelNodeGroup])
}

func (a DeletePlaceholder) String() string {
	return fmt.Sprintf("delete placeholder %s: %s", a.Name.Name, a.Why)
}

func (a SetDesired) String() string {
	return fmt.Sprintf("set the size of %s to %d", a.Group.Name, a.Entry.Target)
}

func (a SetBackoff) String() string {
	return fmt.Sprintf("leave %s alone until %s: %s", a.Group.Name, a.Backoff.Until.UTC().Format("15:04:05"), a.Backoff.Reason)
}

func (a SetWarmPool) String() string {
	return fmt.Sprintf("set the warm pool of %s to %d", a.Group.Name, a.Size)
}

func (a Protect) String() string {
	if a.For == "" {
		return fmt.Sprintf("let node %s be removed again", a.Node)
	}
	return fmt.Sprintf("keep node %s for %s", a.Node, a.For)
}
