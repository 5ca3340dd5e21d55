package scan

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// Status is the part of Cluster Autoscaler's status (1.30 and later) that Mica and the tests read. The real one has more
// (clusterstate/api/types.go).
type Status struct {
	Time       string        `json:"time"`
	NodeGroups []GroupStatus `json:"nodeGroups,omitempty"`
}

// GroupStatus is the status of one group.
type GroupStatus struct {
	Name    string      `json:"name"`
	Health  GroupHealth `json:"health"`
	ScaleUp ScaleUp     `json:"scaleUp"`
}

// GroupHealth has a group's nodes and limits.
type GroupHealth struct {
	NodeCounts struct {
		Registered Registered `json:"registered"`
	} `json:"nodeCounts"`
	CloudProviderTarget int `json:"cloudProviderTarget"`
	MinSize             int `json:"minSize"`
	MaxSize             int `json:"maxSize"`
}

// Registered counts the nodes that have joined.
type Registered struct {
	Total      int `json:"total"`
	Ready      int `json:"ready"`
	NotStarted int `json:"notStarted"`
	Unready    struct {
		Total int `json:"total"`
	} `json:"unready"`
}

// ScaleUp is NoActivity, InProgress or Backoff.
type ScaleUp struct {
	Status      string      `json:"status"`
	BackoffInfo BackoffInfo `json:"backoffInfo,omitzero"`
}

// BackoffInfo is the reason of a backoff.
type BackoffInfo struct {
	ErrorCode    string `json:"errorCode,omitempty"`
	ErrorMessage string `json:"errorMessage,omitempty"`
}

// TimeFormat is the format of Status.Time and of the ConfigMap's annotation.
const TimeFormat = "2006-01-02 15:04:05.999999999 -0700 MST"

// YAML is the text of the ConfigMap.
func (s Status) YAML() (string, error) {
	content, err := yaml.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encode the status: %w", err)
	}
	return string(content), nil
}

// status is clusterstate/clusterstate.go, GetStatus.
func (s *scanner) status() Status {
	status := Status{Time: s.Now.UTC().Format(TimeFormat)}
	for _, group := range s.Groups {
		status.NodeGroups = append(status.NodeGroups, s.groupStatus(group))
	}
	return status
}

func (s *scanner) groupStatus(group Group) GroupStatus {
	target := group.Target
	if size, changed := s.sizes[group.Name]; changed {
		target = size
	}
	ready, starting, unready := s.phases(group)
	status := GroupStatus{
		Name:    group.Name,
		Health:  GroupHealth{CloudProviderTarget: target, MinSize: group.Min, MaxSize: group.Max},
		ScaleUp: ScaleUp{Status: "NoActivity"},
	}
	counts := &status.Health.NodeCounts.Registered
	counts.Total, counts.Ready, counts.NotStarted, counts.Unready.Total = len(s.members[group.Name]), len(ready), len(starting), len(unready)
	switch backoff := s.memory.Backoffs[group.Name]; {
	case s.waitedFor(group.Name) && target > len(ready)+len(unready):
		status.ScaleUp.Status = "InProgress"
	case s.inBackoff(group.Name):
		status.ScaleUp = ScaleUp{Status: "Backoff", BackoffInfo: BackoffInfo{ErrorCode: backoff.Code, ErrorMessage: backoff.Message}}
	}
	return status
}
