package prepare

import (
	"encoding/json"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// metadataOf are the device metadata files (KEP-5304) of a claim's requests for partitions,
// whose UUIDs are in no slice, by the device that brings them into a container.
// kubeletplugin could write such files too, but only for all claims: every whole GPU would
// pay for them, and neither a claim that is gone nor an emptied CDI directory would be
// noticed.
func metadataOf(record journal.Record, driver string) (map[string][]cdi.File, error) {
	files := map[string][]cdi.File{}
	done := map[string]bool{}
	for _, device := range record.Devices {
		request := resourceclaim.BaseRequestRef(device.Request)
		if done[request] {
			continue
		}
		done[request] = true
		devices := slices.DeleteFunc(slices.Clone(record.Devices), func(d journal.Device) bool { return d.Request != device.Request })
		if !slices.ContainsFunc(devices, func(d journal.Device) bool { return d.DeviceUUID() != d.UUID }) {
			continue
		}
		content, err := describeRequest(record, driver, devices)
		if err != nil {
			return nil, fmt.Errorf("request %q: describe its devices: %w", device.Request, err)
		}
		path := metadata.ResourceClaimFilePath(driver, record.Name, request)
		if record.PodClaim != "" {
			path = metadata.ResourceClaimTemplateFilePath(driver, record.PodClaim, request)
		}
		name := nameInClaim(device)
		files[name] = append(files[name], cdi.File{Name: request, ContainerPath: path, Content: content})
	}
	return files, nil
}

// describeRequest is the content of a request's file.
func describeRequest(record journal.Record, driver string, devices []journal.Device) ([]byte, error) {
	request := metadatav1beta1.DeviceMetadataRequest{Name: devices[0].Request}
	for _, device := range devices {
		request.Devices = append(request.Devices, metadatav1beta1.Device{
			Driver: driver, Pool: device.Pool, Name: device.Device, Attributes: attributesOf(device),
		})
	}
	described := metadatav1beta1.DeviceMetadata{
		TypeMeta: metav1.TypeMeta{Kind: "DeviceMetadata", APIVersion: metadatav1beta1.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: record.Namespace, Name: record.Name, UID: types.UID(record.ClaimUID), Generation: 1,
		},
		Requests: []metadatav1beta1.DeviceMetadataRequest{request},
	}
	if record.PodClaim != "" {
		described.PodClaimName = &record.PodClaim
	}
	return json.Marshal(described)
}

// attributesOf uses the names of attributes in slices.
func attributesOf(device journal.Device) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	text := func(value string) resourceapi.DeviceAttribute {
		return resourceapi.DeviceAttribute{StringValue: ptr.To(value)}
	}
	uuid := device.DeviceUUID()
	if uuid == device.UUID {
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{gpu.AttributeUUID: text(uuid)}
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		gpu.AttributeType: text(device.Type), gpu.AttributeUUID: text(uuid), gpu.AttributeParentUUID: text(device.UUID),
	}
}
