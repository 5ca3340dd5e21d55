package simulate

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Machine is an instance type of which a node is imagined.
type Machine struct {
	InstanceType string
	// Driver is the name under which the devices are published.
	Driver string
	// DriverVersion and CUDAVersion may be empty: then no device says which there is.
	DriverVersion, CUDAVersion string
	// Policies are the cluster's.
	Policies []*v1alpha1.GPUPolicy
}

// maxMachines bounds how many nodes are imagined of a type.
const maxMachines = 1000

// ParseCount takes TYPE or TYPE=COUNT apart.
func ParseCount(text string) (instanceType string, count int, err error) {
	instanceType, number, given := strings.Cut(text, "=")
	if !given {
		return instanceType, 1, nil
	}
	if count, err = strconv.Atoi(number); err != nil || count < 1 || count > maxMachines {
		return "", 0, fmt.Errorf("%q is no number of nodes: give TYPE or TYPE=COUNT, such as p5.48xlarge=2, with a count from 1 to %d", text, maxMachines)
	}
	return instanceType, count, nil
}

// Predict is what a node of the machine would be, and publish, by the code that publishes it on a
// node. The error is the catalogue's where it does not know the machine.
func (m Machine) Predict() (*template.Template, error) {
	if _, err := catalog.InstanceByType(m.InstanceType); err != nil {
		return nil, err
	}
	group := &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: m.InstanceType}}
	group.Spec.Template.DriverVersion, group.Spec.Template.CUDADriverVersion = m.DriverVersion, m.CUDAVersion
	return template.Predict(m.Driver, group, m.InstanceType, m.Policies)
}

// AddNodes has the manifest's pods find so many empty nodes of a machine.
func (m *Manifest) AddNodes(predicted *template.Template, instanceType string, count int) {
	for i := range count {
		name := fmt.Sprintf("%s-%d", instanceType, i+1)
		node := *predicted.Node.DeepCopy()
		node.Name = name
		node.Labels[corev1.LabelHostname] = name
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		m.nodes = append(m.nodes, node)
		for _, slice := range predicted.Slices {
			m.slices = append(m.slices, onNode(slice, name))
		}
	}
}

// onNode is a slice as a node of that name publishes it. Its devices, which nobody changes, are shared.
func onNode(slice *resourceapi.ResourceSlice, name string) resourceapi.ResourceSlice {
	own := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: slice.Name + "-" + name}, Spec: slice.Spec}
	own.Spec.NodeName, own.Spec.Pool.Name = &name, name
	return own
}
