package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

// check is nil when what it looks at is ready, else it says what is missing.
type check func(context.Context) error

const (
	// checkInterval is short next to what starting a component takes.
	checkInterval = 25 * time.Millisecond
	// startLimit is far beyond what a slow machine takes for one component.
	startLimit = 3 * time.Minute
)

// await repeats a check until it passes, the supervisor is told to stop, or a
// component ends.
func (s *Supervisor) await(ctx context.Context, what string, ready check) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		missing := ready(ctx)
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s is not ready after %s: %w: see the logs in %s", what, startLimit, missing, s.spec.Dir.Logs())
			}
			return ctx.Err()
		case ended := <-s.ended:
			if err := s.handleEnd(ended); err != nil {
				return err
			}
		case <-tick.C:
		}
	}
}

// answers checks that something accepts connections.
func answers(network, address string) check {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

func (a *api) ready(ctx context.Context) error { return a.get(ctx, "/readyz", nil) }

const nodePath = "/api/v1/nodes/" + layout.NodeName

// node holds the fields of a Node that matter here.
type node struct {
	Spec struct {
		Taints []struct{ Key, Effect string }
	}
	Status struct {
		Conditions []struct{ Type, Status, Message string }
	}
}

// registered checks that kubelet has made its Node.
func (a *api) registered(ctx context.Context) error { return a.get(ctx, nodePath, nil) }

// schedulable checks that pods can be started: the node is ready and has no
// taint, and the default namespace has its service account.
func (a *api) schedulable(ctx context.Context) error {
	var found node
	if err := a.get(ctx, nodePath, &found); err != nil {
		return err
	}
	for _, taint := range found.Spec.Taints {
		return fmt.Errorf("the node has the taint %s:%s", taint.Key, taint.Effect)
	}
	for _, condition := range found.Status.Conditions {
		if condition.Type == "Ready" {
			if condition.Status != "True" {
				return fmt.Errorf("the node is not ready: %s", condition.Message)
			}
			return a.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
		}
	}
	return errors.New("the node does not say whether it is ready")
}

// labels are what node feature discovery and GPU feature discovery would set.
// kubelet itself may not (NodeRestriction).
func (a *api) label(ctx context.Context) error {
	return a.merge(ctx, nodePath, map[string]any{"metadata": map[string]any{"labels": map[string]string{
		"feature.node.kubernetes.io/pci-10de.present": "true",
		"nvidia.com/gpu.present":                      "true",
	}}})
}
