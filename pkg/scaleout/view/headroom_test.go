package view

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func TestAViewEndsWithTheNextWindowOfAHeadroom(t *testing.T) {
	all := &objects{}
	for name, start := range map[string]string{"late": "0 15 * * *", "early": "0 14 * * *"} {
		headroom := v1alpha1.GPUHeadroom{ObjectMeta: metav1.ObjectMeta{Name: name}}
		headroom.Spec.DeviceClassName = testDriver
		headroom.Spec.Schedule = []v1alpha1.Window{{Start: start, Duration: metav1.Duration{Duration: time.Hour}, Devices: 1}}
		all.headrooms.Items = append(all.headrooms.Items, headroom)
	}
	if v := look(all); !v.Again.Equal(t0.Add(2*time.Hour)) || len(v.Headroom) != 2 {
		t.Errorf("%d headrooms, and the next change is at %s; want 2, and 14:00 (%v)", len(v.Headroom), v.Again, v.InvalidHeadrooms)
	}
}
