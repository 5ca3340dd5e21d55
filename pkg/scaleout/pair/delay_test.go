package pair

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	scaleUpDelay = v1alpha1.AnnotationScaleUpDelay
	delayBefore  = v1alpha1.AnnotationDelayBefore
)

// delaying is a situation with pending pods under a budget that fit on a group.
func delaying(now time.Time, pods ...*corev1.Pod) *Situation {
	kind := scaleout.Kind{Groups: []scaleout.GroupFit{{Group: "g", PerNode: 1}}}
	for i, pod := range pods {
		pod.Namespace, pod.Name, pod.UID = "team", fmt.Sprintf("pod-%d", i), types.UID(fmt.Sprint(i))
		pod.CreationTimestamp = metav1.NewTime(epoch)
		kind.Pods = append(kind.Pods, scaleout.PodDecision{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID})
	}
	group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: v1alpha1.GPUNodeGroupSpec{Pairing: v1alpha1.PairingPlaceholder}}
	return &Situation{
		Now: now,
		View: &view.View{
			Snapshot:    scaleout.Snapshot{Pending: pods, Budgets: []scaleout.Budget{{Name: "team", Namespaces: []string{"team"}}}},
			GroupStates: []view.Group{{Object: group, Template: &template.Template{}}},
		},
		Decision: scaleout.Decision{Kinds: []scaleout.Kind{kind}},
	}
}

// delays are the situation's delays.
func (s *Situation) delays() ([]Action, time.Time) {
	s.index = newIndex(s)
	return delays(s)
}

func pod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
}

// A pod gets its own delay back, even an invalid one. A forged delay affects its own pod only. A lease is renewed when half
// of it is over.
func TestDelaysOfPods(t *testing.T) {
	ours := func(delay, before string) map[string]string {
		return map[string]string{scaleUpDelay: delay, delayBefore: before}
	}
	own := func(delay string) map[string]string { return map[string]string{scaleUpDelay: delay} }
	for name, test := range map[string]struct {
		age        time.Duration
		has        map[string]string
		failClosed bool
		// kept is what the pod has afterwards under the budget, left without one.
		kept, left map[string]string
	}{
		"none":                        {time.Minute, nil, false, ours("1h1m0s", ""), nil},
		"admission's":                 {time.Minute, ours("10m", ""), false, ours("10m", ""), nil},
		"admission's, half over":      {5*time.Minute + time.Second, ours("10m", ""), false, ours("1h5m1s", ""), nil},
		"renewed":                     {3 * time.Hour, ours("3h30m", ""), false, ours("3h30m", ""), nil},
		"half over":                   {3 * time.Hour, ours("3h29m", ""), false, ours("4h0m0s", ""), nil},
		"over":                        {3 * time.Hour, ours("1h", ""), false, ours("4h0m0s", ""), nil},
		"a user's, short":             {time.Minute, own("2m"), false, ours("1h1m0s", "2m"), own("2m")},
		"a user's, long":              {time.Minute, own("24h"), false, own("24h"), own("24h")},
		"a user's, long, almost over": {24*time.Hour - time.Minute, own("24h"), false, ours("24h59m0s", "24h"), own("24h")},
		"a user's, renewed":           {24 * time.Hour, ours("24h10m", "2m"), false, ours("25h0m0s", "2m"), own("2m")},
		"no duration":                 {time.Minute, own("soon"), false, ours("1h1m0s", "soon"), own("soon")},
		"negative":                    {time.Minute, own("-1h"), false, ours("1h1m0s", "-1h"), own("-1h")},
		"too long for a duration":     {time.Minute, own("99999999999h"), false, ours("1h1m0s", "99999999999h"), own("99999999999h")},
		"of before there were leases": {time.Minute, own("876000h"), false, ours("1h1m0s", ""), nil},
		"forged mark":                 {time.Minute, map[string]string{delayBefore: "0s"}, false, ours("1h1m0s", "0s"), own("0s")},
		"forged mark and delay":       {time.Minute, ours("soon", "later"), false, ours("1h1m0s", "later"), own("later")},
		"forged to last":              {time.Minute, ours("9999h", ""), false, ours("1h1m0s", ""), nil},
		"fail closed":                 {time.Minute, nil, true, ours("876000h", ""), nil},
		"fail closed, kept":           {time.Hour, ours("876000h", ""), true, ours("876000h", ""), nil},
		"fail closed, a user's":       {time.Minute, own("24h"), true, ours("876000h", "24h"), own("24h")},
		"fail closed since now":       {time.Minute, ours("1h", "2m"), true, ours("876000h", "2m"), own("2m")},
		"a clock that is behind":      {-time.Minute, nil, false, ours("1h0m0s", ""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			for under, want := range map[string]map[string]string{"team": test.kept, "another": test.left} {
				p := pod(maps.Clone(test.has))
				s := delaying(epoch.Add(test.age), p)
				s.FailClosed, s.View.Budgets[0].Namespaces[0] = test.failClosed, under
				actions, _ := s.delays()
				for _, action := range actions {
					apply(p, action.(delay))
				}
				if len(p.Annotations) != len(want) || !maps.Equal(p.Annotations, want) {
					t.Errorf("with a budget of namespace %s the pod has %v, want %v", under, p.Annotations, want)
				}
				actions, again := s.delays()
				if len(actions) > 0 {
					t.Errorf("with a budget of namespace %s, another pass does %v", under, actions)
				}
				if again.IsZero() != (test.failClosed || under != "team") {
					t.Errorf("with a budget of namespace %s, the delay is renewed at %s", under, again)
				}
				for at, renewals := range map[time.Time]int{again.Add(-2 * time.Second): 0, again: 1} {
					if s.Now = at; !again.IsZero() && test.age >= 0 {
						if actions, _ := s.delays(); len(actions) != renewals {
							t.Errorf("at %s the pass does %v, want %d renewals", at, actions, renewals)
						}
					}
				}
			}
		})
	}
}

// apply applies a delay as the API server does.
func apply(p *corev1.Pod, d delay) {
	after := maps.Clone(p.Annotations)
	if after == nil {
		after = map[string]string{}
	}
	for key, value := range d.annotations() {
		if value == nil {
			delete(after, key)
		} else {
			after[key] = value.(string)
		}
	}
	p.Annotations = after
}

// Pods without a delay come before renewals, because Cluster Autoscaler could add nodes for them now. The next pass follows
// at once.
func TestPodsWithoutADelayComeFirst(t *testing.T) {
	var pods []*corev1.Pod
	for range maxDelays {
		pods = append(pods, pod(map[string]string{scaleUpDelay: "1h10m", delayBefore: ""}))
	}
	for range 10 {
		pods = append(pods, pod(nil))
	}
	actions, again := delaying(epoch.Add(time.Hour), pods...).delays()
	if len(actions) != maxDelays || !again.Equal(epoch.Add(time.Hour)) {
		t.Errorf("there are %d actions, and the next pass is at %s, want %d and now", len(actions), again, maxDelays)
	}
	for i := range 10 {
		if got := actions[i].String(); !strings.Contains(got, fmt.Sprintf("pod-%d ", maxDelays+i)) {
			t.Errorf("action %d is %q, want one for a pod without a delay", i, got)
		}
	}
}

// A pod that fits on no group that grows here gets no delay, and loses one.
func TestPodsThatCannotBePlannedAreLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*Situation){
		"a problem":               func(s *Situation) { s.Decision.Kinds[0].Problem = "not planned" },
		"a miss":                  func(s *Situation) { s.Decision.Kinds[0].Groups[0].Miss = &fit.Miss{} },
		"no group":                func(s *Situation) { s.Decision.Kinds[0].Groups = nil },
		"an unknown template":     func(s *Situation) { s.View.GroupStates[0].Template = nil },
		"an observed group":       func(s *Situation) { s.View.GroupStates[0].Object.Spec.Pairing = v1alpha1.PairingObserve },
		"a group that is refused": func(s *Situation) { s.View.GroupStates[0].Refused = "its labels are another's" },
		"no budget":               func(s *Situation) { s.View.Budgets = nil },
	} {
		t.Run(name, func(t *testing.T) {
			for has, want := range map[string]int{"": 0, "10m": 1} {
				var annotations map[string]string
				if has != "" {
					annotations = map[string]string{scaleUpDelay: has, delayBefore: ""}
				}
				s := delaying(epoch.Add(time.Minute), pod(annotations))
				change(s)
				if actions, _ := s.delays(); len(actions) != want {
					t.Errorf("with the delay %q: %v, want %d", has, actions, want)
				}
			}
		})
	}
}
