// Package rights says which of the rights that roles grant the requests in an API server's audit log have used.
// It is only imported by tests. It never asks a cluster: roles and logs are handed to it.
package rights

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// Right is what a rule of a role grants of one resource by one verb.
type Right struct {
	// Holder is the user's name, such as system:serviceaccount:mica:mica-plugin.
	Holder string
	Verb   string
	Group  string
	// Resource has its subresource after a slash.
	Resource string
	// Namespace is that of the role; empty: all, by a ClusterRole.
	Namespace string
	// Name is the one object that the right is for; empty: all.
	Name string
}

// String is such as "mica:mica-plugin: get resourceclaims.resource.k8s.io".
func (r Right) String() string {
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	text := strings.TrimPrefix(r.Holder, "system:serviceaccount:") + ": " + r.Verb + " " + resource
	if r.Group != "" {
		text += "." + r.Group
	}
	if subresource != "" {
		text += "/" + subresource
	}
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in namespace " + r.Namespace
	}
	return text
}

// Of are the rights that rules grant to a holder, in a namespace or, if that is empty, in all.
// Wildcards are taken literally, so that no request uses them: Mica's roles have none.
func Of(holder, namespace string, rules []rbacv1.PolicyRule) []Right {
	var all []Right
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						all = append(all, Right{holder, verb, group, resource, namespace, name})
					}
				}
			}
		}
	}
	return all
}

// Tally counts how often rights were used.
type Tally struct {
	uses map[Right]int
	// refused are requests that no role allows.
	refused map[Right]int
	// agents begin the user agents whose requests count: tests borrow ServiceAccounts, too.
	agents []string
}

// NewTally counts no use yet. Requests count whose user agent begins with one of agents.
func NewTally(granted []Right, agents ...string) *Tally {
	t := &Tally{uses: map[Right]int{}, refused: map[Right]int{}, agents: agents}
	for _, right := range granted {
		t.uses[right] = 0
	}
	return t
}

// maxLine bounds an event of an audit log. Those of the level Metadata have some 2 KB.
const maxLine = 1 << 20

// Add counts the requests in a log of an API server's audit, of the level Metadata or more, a JSON object
// (audit.k8s.io/v1, Event) per line. The log may end in the middle of a line that is being written.
func (t *Tally) Add(log io.Reader) error {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLine)
	var damage error
	for number := 1; lines.Scan(); number++ {
		if damage != nil {
			return damage
		}
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			damage = fmt.Errorf("line %d of the audit log is no event: %w", number, err)
			continue
		}
		t.count(event)
	}
	return lines.Err()
}

func (t *Tally) count(event auditv1.Event) {
	object, status := event.ObjectRef, event.ResponseStatus
	if object == nil || status == nil {
		return
	}
	if !slices.ContainsFunc(t.agents, func(agent string) bool { return strings.HasPrefix(event.UserAgent, agent) }) {
		return
	}
	request := Right{event.User.Username, event.Verb, object.APIGroup, object.Resource, object.Namespace, object.Name}
	if object.Subresource != "" {
		request.Resource += "/" + object.Subresource
	}
	if event.Annotations[decision] == "forbid" {
		t.refused[request]++
	}
	if status.Code >= http.StatusBadRequest {
		return
	}
	t.use(request)
	for _, verb := range implied(event) {
		request.Verb = verb
		t.use(request)
	}
}

// decision is the annotation by which an API server notes whether the user was authorized, before admission.
const decision = "authorization.k8s.io/decision"

// implied are the verbs that a request needs beside its own: an apply that creates its object is a create, too, and a
// watch that begins with what there is takes the place of a list, which it becomes where the API server has no such
// watches (WatchList of client-go).
func implied(event auditv1.Event) []string {
	switch {
	case event.Verb == "patch" && event.ResponseStatus.Code == http.StatusCreated:
		return []string{"create"}
	case event.Verb == "watch" && strings.Contains(event.RequestURI, "sendInitialEvents=true"):
		return []string{"list"}
	}
	return nil
}

func (t *Tally) use(request Right) {
	for right := range t.uses {
		if right.covers(request) {
			t.uses[right]++
		}
	}
}

// covers reports whether the right is enough for a request of one namespace or all, and one object or many.
func (r Right) covers(request Right) bool {
	if r.Namespace == "" {
		request.Namespace = ""
	}
	if r.Name == "" {
		request.Name = ""
	}
	return r == request
}

// Complaints name each right that no request has used and each request that no role allows, unless there is a reason
// for it, and each reason that is for nothing. They are sorted.
func (t *Tally) Complaints(unusedBecause, refusedBecause map[Right]string) []string {
	var all []string
	for request, times := range t.refused {
		request.Namespace, request.Name = "", ""
		if refusedBecause[request] == "" {
			all = append(all, fmt.Sprintf("%s: this was asked for and no role grants it, times: %d: grant it, do not ask, or give the reason", request, times))
		}
	}
	for request, reason := range refusedBecause {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(t.refused)), request.covers) {
			all = append(all, fmt.Sprintf("%s: this was never refused, and there is a reason why it is (%s): remove the reason", request, reason))
		}
	}
	for right, uses := range t.uses {
		if uses == 0 && unusedBecause[right] == "" {
			all = append(all, fmt.Sprintf("%s: no request has used this right: take it from the role, test what needs it, or give the reason why no test can", right))
		}
	}
	for right, reason := range unusedBecause {
		switch uses, granted := t.uses[right]; {
		case !granted:
			all = append(all, fmt.Sprintf("%s: no role grants this, and there is a reason why no request uses it (%s): remove the reason", right, reason))
		case uses > 0:
			all = append(all, fmt.Sprintf("%s: this right was used, times: %d, and there is a reason why nothing uses it (%s): remove the reason", right, uses, reason))
		}
	}
	slices.Sort(all)
	return all
}

// Len is how many rights there are.
func (t *Tally) Len() int { return len(t.uses) }
