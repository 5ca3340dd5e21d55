package scan

import (
	"fmt"
	"time"

	"sigs.k8s.io/yaml"
)

// Status is what Cluster Autoscaler (1.30 and later) writes into its ConfigMap.
type Status struct {
	Time             string        `json:"time"`
	AutoscalerStatus string        `json:"autoscalerStatus"`
	ClusterWide      ClusterStatus `json:"clusterWide"`
	NodeGroups       []GroupStatus `json:"nodeGroups,omitempty"`
}

// ClusterStatus is of all groups together.
type ClusterStatus struct {
	Health    Health    `json:"health"`
	ScaleUp   ScaleUp   `json:"scaleUp"`
	ScaleDown ScaleDown `json:"scaleDown"`
}

// GroupStatus is of one group.
type GroupStatus struct {
	Name      string      `json:"name"`
	Health    GroupHealth `json:"health"`
	ScaleUp   ScaleUp     `json:"scaleUp"`
	ScaleDown ScaleDown   `json:"scaleDown"`
}

// Health counts nodes.
type Health struct {
	Status        string     `json:"status"`
	NodeCounts    NodeCounts `json:"nodeCounts"`
	LastProbeTime string     `json:"lastProbeTime"`
}

// GroupHealth has the group's limits besides.
type GroupHealth struct {
	Health              `json:",inline"`
	CloudProviderTarget int `json:"cloudProviderTarget"`
	MinSize             int `json:"minSize"`
	MaxSize             int `json:"maxSize"`
}

// NodeCounts are the nodes by what became of them.
type NodeCounts struct {
	Registered       Registered `json:"registered"`
	LongUnregistered int        `json:"longUnregistered"`
	Unregistered     int        `json:"unregistered"`
}

// Registered are the nodes that there are.
type Registered struct {
	Total      int     `json:"total"`
	Ready      int     `json:"ready"`
	NotStarted int     `json:"notStarted"`
	Unready    Unready `json:"unready"`
}

// Unready are nodes that were ready, or should be.
type Unready struct {
	Total           int `json:"total"`
	ResourceUnready int `json:"resourceUnready"`
}

// ScaleUp is what is going on.
type ScaleUp struct {
	Status        string      `json:"status"`
	BackoffInfo   BackoffInfo `json:"backoffInfo,omitzero"`
	LastProbeTime string      `json:"lastProbeTime"`
}

// BackoffInfo is why a group is left alone.
type BackoffInfo struct {
	ErrorCode    string `json:"errorCode,omitempty"`
	ErrorMessage string `json:"errorMessage,omitempty"`
}

// ScaleDown counts unneeded nodes.
type ScaleDown struct {
	Status        string `json:"status"`
	Candidates    int    `json:"candidates,omitempty"`
	LastProbeTime string `json:"lastProbeTime"`
}

// TimeFormat is that of Status.Time and of the ConfigMap's annotation.
const TimeFormat = "2006-01-02 15:04:05.999999999 -0700 MST"

// YAML is the text of the ConfigMap.
func (s Status) YAML() (string, error) {
	content, err := yaml.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the status: %w", err)
	}
	return string(content), nil
}

// status is what clusterstate/clusterstate.go, GetStatus, gives.
func (s *scanner) status() Status {
	probe := s.Now.UTC().Format(time.RFC3339Nano)
	status := Status{Time: s.Now.UTC().Format(TimeFormat), AutoscalerStatus: "Running"}
	all := &status.ClusterWide
	*all = ClusterStatus{
		Health:    Health{Status: "Healthy", LastProbeTime: probe},
		ScaleUp:   ScaleUp{Status: "NoActivity", LastProbeTime: probe},
		ScaleDown: ScaleDown{Status: "NoCandidates", LastProbeTime: probe},
	}
	for _, group := range s.Groups {
		own := s.groupStatus(group, probe)
		status.NodeGroups = append(status.NodeGroups, own)
		add(&all.Health.NodeCounts, own.Health.NodeCounts)
		if own.ScaleUp.Status == "InProgress" {
			all.ScaleUp.Status = "InProgress"
		}
		if all.ScaleDown.Candidates += own.ScaleDown.Candidates; all.ScaleDown.Candidates > 0 {
			all.ScaleDown.Status = "CandidatesPresent"
		}
	}
	return status
}

func add(sum *NodeCounts, counts NodeCounts) {
	sum.Registered.Total += counts.Registered.Total
	sum.Registered.Ready += counts.Registered.Ready
	sum.Registered.NotStarted += counts.Registered.NotStarted
	sum.Registered.Unready.Total += counts.Registered.Unready.Total
	sum.Registered.Unready.ResourceUnready += counts.Registered.Unready.ResourceUnready
	sum.Unregistered += counts.Unregistered
}

func (s *scanner) groupStatus(group Group, probe string) GroupStatus {
	target := group.Target
	if size, changed := s.sizes[group.Name]; changed {
		target = size
	}
	counts := s.count(group, target)
	status := GroupStatus{
		Name: group.Name,
		Health: GroupHealth{
			Health:              Health{Status: "Healthy", NodeCounts: counts, LastProbeTime: probe},
			CloudProviderTarget: target, MinSize: group.Min, MaxSize: group.Max,
		},
		ScaleUp:   ScaleUp{Status: "NoActivity", LastProbeTime: probe},
		ScaleDown: ScaleDown{Status: "NoCandidates", LastProbeTime: probe},
	}
	switch backoff := s.memory.Backoffs[group.Name]; {
	case s.waitedFor(group.Name) && target > counts.Registered.Ready+counts.Registered.Unready.Total:
		status.ScaleUp.Status = "InProgress"
	case s.inBackoff(group.Name):
		status.ScaleUp.Status = "Backoff"
		status.ScaleUp.BackoffInfo = BackoffInfo{ErrorCode: backoff.Code, ErrorMessage: backoff.Message}
	}
	for _, node := range s.members[group.Name] {
		if _, unneeded := s.memory.Unneeded[node.Name]; unneeded {
			status.ScaleDown.Candidates++
			status.ScaleDown.Status = "CandidatesPresent"
		}
	}
	return status
}

func (s *scanner) count(group Group, target int) NodeCounts {
	ready, starting, unready := s.phases(group)
	counts := NodeCounts{Registered: Registered{Total: len(s.members[group.Name]), Ready: len(ready), NotStarted: len(starting)}}
	for _, node := range unready {
		counts.Registered.Unready.Total++
		if s.readyFor(node, 0) && !startup(node) {
			counts.Registered.Unready.ResourceUnready++
		}
	}
	counts.Unregistered = max(target-counts.Registered.Total, 0)
	return counts
}
