package offer

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// An administrator annotates the node when a GPU was repaired. A time that is in the future when it is read never counts.
func TestRepairsByAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := apiserver.New()
		r := newRig(t, "g5.12xlarge", func(o *Options) { o.Client, o.Policies = server, apiserver.NewPolicies() })
		fixture.Background(t.Context(), t, r.Run)
		r.watch(t)
		uuid := r.machine.GPUs()[0].UUID
		annotate := func(annotations map[string]string) {
			node, err := server.CoreV1().Nodes().Get(t.Context(), fixture.NodeName, metav1.GetOptions{})
			must(t, err)
			node.Annotations = annotations
			_, err = server.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
			must(t, err)
			after(time.Second)
		}
		expect := func(what string, want time.Time) {
			t.Helper()
			if got := r.health.repairedAt(uuid); !got.Equal(want) {
				t.Errorf("%s: repaired at %v, want %v", what, got, want)
			}
		}
		after(time.Second)
		now := time.Now().UTC().Truncate(time.Second)
		expect("no annotation", time.Time{})
		annotate(map[string]string{"repaired.mica.gpu/" + uuid: now.Format(time.RFC3339), "other.example/" + uuid: "x"})
		expect("the present time", now)
		annotate(nil)
		expect("it is gone", time.Time{})

		annotate(map[string]string{"repaired.mica.gpu/" + uuid: "yesterday"})
		expect("no time", time.Time{})
		after(time.Hour)
		for what, said := range map[string]string{"the log": r.said(), "the events": r.warned()} {
			if count := strings.Count(said, "yesterday"); count != 1 {
				t.Errorf("%s has %d lines about what is no time, want 1", what, count)
			}
		}

		future := time.Now().UTC().Truncate(time.Second).Add(time.Hour)
		annotate(map[string]string{"repaired.mica.gpu/" + uuid: future.Format(time.RFC3339)})
		expect("the future", time.Time{})
		after(2 * time.Hour)
		annotate(map[string]string{"repaired.mica.gpu/" + uuid: future.Format(time.RFC3339), "other.example/" + uuid: "x"})
		expect("the future that has passed", time.Time{})
		later := future.Add(time.Hour)
		annotate(map[string]string{"repaired.mica.gpu/" + uuid: later.Format(time.RFC3339)})
		expect("set again", later)
	})
}
