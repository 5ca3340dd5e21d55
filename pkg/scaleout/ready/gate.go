package ready

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Reason and action of the Event on an incomplete node.
const (
	reasonIncomplete = "GPUNodeIncomplete"
	actionObserve    = "Observe"
)

// republishGrace is how long an open node may lack pools before it is reported: a plugin republishes in several steps.
const republishGrace = 2 * time.Minute

// Gate opens complete nodes to pods. Its memory only prevents repeated reports. It is not safe for concurrent use.
type Gate struct {
	// Driver is our driver's name.
	Driver   string
	Client   client.Client
	Recorder events.EventRecorder

	incomplete map[types.UID]incompleteNode
	stuck      []Stuck
}

// Stuck are the nodes that keep their startup taint for too long, as of the last Act.
func (g *Gate) Stuck() []Stuck { return g.stuck }

// incompleteNode is the memory of an incomplete node.
type incompleteNode struct {
	since time.Time
	// reported is the last Event's text.
	reported string
}

// Act opens the complete nodes, and reports overdue ones, once per text. again is when to act again without a change, or zero.
// Nodes that have changed meanwhile wait for the next pass.
func (g *Gate) Act(ctx context.Context, v *view.View, now time.Time) (again time.Time, err error) {
	before := g.incomplete
	g.incomplete, g.stuck = map[types.UID]incompleteNode{}, nil
	var failures []error
	for _, c := range candidates(g.Driver, v) {
		if len(c.Lacks) > 0 {
			look := g.wait(ctx, c, before[c.Node.UID], now)
			if !look.IsZero() && (again.IsZero() || look.Before(again)) {
				again = look
			}
			continue
		}
		if c.closed() {
			g.waive(ctx, c, before[c.Node.UID], now)
			failures = append(failures, g.open(ctx, c))
		}
	}
	return again, errors.Join(failures...)
}

// wait reports an incomplete node when it is overdue. It returns when that will be.
func (g *Gate) wait(ctx context.Context, c candidate, w incompleteNode, now time.Time) (due time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
	defer func() { g.incomplete[c.Node.UID] = w }()
	due = c.Deadline
	if named := c.Node.CreationTimestamp.Add(keptOffAfter); len(c.KeptOff) > 0 && named.Before(due) {
		due = named
	}
	if patience := w.since.Add(republishGrace); !c.closed() && due.Before(patience) {
		due = patience
	}
	if now.Before(due) {
		return due
	}
	advice := c.advice()
	if c.closed() {
		g.stuck = append(g.stuck, c.stuck(advice))
	}
	g.report(ctx, c, c.Lacks, advice, now, &w)
	if now.Before(c.Deadline) {
		return c.Deadline // then it is overdue for other reasons, too
	}
	return time.Time{}
}

// waive reports a node that is opened without the pools of other drivers.
func (g *Gate) waive(ctx context.Context, c candidate, w incompleteNode, now time.Time) {
	if len(c.Waived) == 0 {
		return
	}
	g.report(ctx, c, c.Waived, "its startup taint is removed without that; new nodes are expected to be like most of the live ones", now, &w)
	g.incomplete[c.Node.UID] = w
}

// report writes an Event, unless it repeats the last one.
func (g *Gate) report(ctx context.Context, c candidate, lacks []string, advice string, now time.Time, w *incompleteNode) {
	text := strings.Join(lacks, "; ")
	if text+advice == w.reported {
		return
	}
	w.reported = text + advice
	message := sentence(c, text, advice, now)
	klog.FromContext(ctx).Info("Node is incomplete", "node", klog.KObj(c.Node), "group", c.Group, "report", message)
	g.Recorder.Eventf(c.Node, nil, corev1.EventTypeWarning, reasonIncomplete, actionObserve, "%s", message)
}

func sentence(c candidate, lacks, advice string, now time.Time) string {
	promised := "removes its startup taint"
	if c.Group != "" {
		promised = "nodes of GPUNodeGroup " + c.Group + " offer"
	}
	age := now.Sub(c.Node.CreationTimestamp.Time).Round(time.Second)
	frame := fmt.Sprintf("%s after its creation, the node lacks what %s: %%s: %s", age, promised, advice)
	return fmt.Sprintf(frame, excerpt.Of(lacks, excerpt.MaxEvent-len(frame)+len("%s")))
}

// open removes the startup taint. The patch tests that it removes nothing else.
func (g *Gate) open(ctx context.Context, c candidate) error {
	patch, err := removal(c.Node.Spec.Taints)
	if err != nil {
		return fmt.Errorf("remove the startup taint of node %s: %w", c.Node.Name, err)
	}
	log := klog.FromContext(ctx)
	node := &corev1.Node{}
	node.Name = c.Node.Name
	switch err := g.Client.Patch(ctx, node, client.RawPatch(types.JSONPatchType, patch)); {
	case err == nil:
		log.Info("Node is complete; removed the startup taint", "node", klog.KObj(c.Node), "group", c.Group)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// Invalid is the answer to a failed test.
		log.V(2).Info("Node changed before its startup taint was removed; checking it again", "node", klog.KObj(c.Node), "err", err)
		return nil
	default:
		return fmt.Errorf("remove the startup taint of node %s, which is complete: %w", c.Node.Name, err)
	}
}

// operation is part of a JSON patch (RFC 6902).
type operation struct {
	Op    string        `json:"op"`
	Path  string        `json:"path"`
	Value *corev1.Taint `json:"value,omitempty"`
}

// removal removes the startup taints if they are still at the same index, from the last to the first.
func removal(taints []corev1.Taint) ([]byte, error) {
	var patch []operation
	for i := len(taints) - 1; i >= 0; i-- {
		if !isStartup(taints[i]) {
			continue
		}
		path := fmt.Sprintf("/spec/taints/%d", i)
		patch = append(patch, operation{Op: "test", Path: path, Value: &taints[i]}, operation{Op: "remove", Path: path})
	}
	return json.Marshal(patch)
}
