package scan

import (
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Request is a scale-up in progress.
type Request struct {
	// Increase is the number of nodes. Since is the time of the last increase.
	Increase int
	Since    time.Time
}

// codeTimeout is the code of a backoff after a timeout (metrics/metrics.go, Timeout).
const codeTimeout = "timeout"

// request changes the scale-up in progress (clusterstate/clusterstate.go, registerOrUpdateScaleUpNoLock).
func (s *scanner) request(group string, nodes int) {
	request, known := s.memory.Requests[group]
	request.Increase += nodes
	switch {
	case request.Increase <= 0:
		delete(s.memory.Requests, group)
		return
	case !known && nodes <= 0:
		return
	case nodes > 0:
		request.Since = s.Now
	}
	s.memory.Requests[group] = request
}

func (s *scanner) waitedFor(group string) bool {
	_, known := s.memory.Requests[group]
	return known
}

// phases are the nodes of a group by state. A node that has not started MaxStartup after it joined is unready
// (clusterstate/clusterstate.go, updateReadinessStats).
func (s *scanner) phases(group Group) (ready, starting, unready []*corev1.Node) {
	template := s.template(group)
	for _, node := range s.members[group.Name] {
		switch {
		case s.started(node, template):
			ready = append(ready, node)
		case node.CreationTimestamp.Add(s.options.MaxStartup).After(s.Now):
			starting = append(starting, node)
		default:
			unready = append(unready, node)
		}
	}
	return ready, starting, unready
}

// updateRequests ends completed scale-ups, and backs off after MaxProvision (clusterstate/clusterstate.go,
// updateScaleRequests). Machines that have not joined by then are ended (core/static_autoscaler.go,
// removeOldUnregisteredNodes); others stay (aws/aws_cloud_provider.go, DecreaseTargetSize).
func (s *scanner) updateRequests() {
	maps.DeleteFunc(s.memory.Backoffs, func(_ string, last Backoff) bool { return s.Now.After(last.Failed.Add(backoffReset)) })
	for _, group := range s.Groups {
		request, known := s.memory.Requests[group.Name]
		if !known {
			continue
		}
		ready, _, unready := s.phases(group)
		lasts := s.Now.Sub(request.Since)
		switch {
		case group.Target <= len(ready)+len(unready):
			delete(s.memory.Requests, group.Name)
		case lasts > s.options.MaxProvision:
			delete(s.memory.Requests, group.Name)
			s.leaveAlone(group.Name, codeTimeout, fmt.Sprintf("Scale-up timed out for node group %s after %s", group.Name, lasts))
			if joined := len(s.members[group.Name]); joined < group.Target {
				s.sizes[group.Name] = max(joined, group.Min)
			}
		}
	}
}

// upcoming is the number of upcoming nodes of a group, with those that have joined. Without a scale-up in progress, or
// during a backoff, there are none (clusterstate/clusterstate.go, GetUpcomingNodes).
func (s *scanner) upcoming(group Group) (int, []*corev1.Node) {
	ready, starting, unready := s.phases(group)
	if coming := group.Target - group.Failed - len(ready) - len(unready); coming > 0 && s.waitedFor(group.Name) && !s.inBackoff(group.Name) {
		return coming, starting
	}
	return 0, nil
}
