package aws

import (
	"context"
	"encoding/xml"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/test/ekssim"
	"github.com/mica-gpu/mica/test/fleet/cloud"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// types is EC2 as far as it describes instance types and launch templates.
type types struct{ machines Cloud }

type set[T any] struct {
	Items []T `xml:"item"`
}

type describeTypesResponse struct {
	XMLName   xml.Name          `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeInstanceTypesResponse"`
	RequestID string            `xml:"requestId"`
	Types     set[instanceType] `xml:"instanceTypeSet"`
}

type instanceType struct {
	Name          string      `xml:"instanceType"`
	VCPUs         int         `xml:"vCpuInfo>defaultVCpus"`
	MemoryMiB     uint64      `xml:"memoryInfo>sizeInMiB"`
	Architectures set[string] `xml:"processorInfo>supportedArchitectures"`
	GPUs          set[device] `xml:"gpuInfo>gpus"`
}

type device struct {
	Name         string `xml:"name"`
	Manufacturer string `xml:"manufacturer"`
	Count        int    `xml:"count"`
}

// describe lists all types of the simulated machines. Cluster Autoscaler asks once, when it starts, and refuses groups of
// other types.
func (t types) describe(_ context.Context, p *ekssim.Parameters) (any, error) {
	if err := p.End(); err != nil {
		return nil, err
	}
	body := describeTypesResponse{RequestID: ekssim.RequestID}
	for _, name := range nodes.Names() {
		known, err := catalog.InstanceByType(name)
		if err != nil {
			continue // a machine of the simulator that EC2 does not have
		}
		architecture := known.Architecture
		if architecture == "amd64" {
			architecture = "x86_64"
		}
		body.Types.Items = append(body.Types.Items, instanceType{
			Name: name, VCPUs: known.VCPUs, MemoryMiB: known.MemoryMiB, Architectures: set[string]{[]string{architecture}},
			GPUs: set[device]{[]device{{Name: known.Board.ProductName, Manufacturer: "NVIDIA", Count: len(known.GPUs)}}},
		})
	}
	return body, nil
}

type describeTemplatesResponse struct {
	XMLName   xml.Name             `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeLaunchTemplateVersionsResponse"`
	RequestID string               `xml:"requestId"`
	Versions  set[templateVersion] `xml:"launchTemplateVersionSet"`
}

type templateVersion struct {
	Name         string `xml:"launchTemplateName"`
	Version      int    `xml:"versionNumber"`
	Default      bool   `xml:"defaultVersion"`
	InstanceType string `xml:"launchTemplateData>instanceType"`
	Image        string `xml:"launchTemplateData>imageId"`
}

// launchTemplateOf names a node group's launch template. Its only version is 1.
func launchTemplateOf(group string) string { return "fleet-" + group }

func (t types) describeLaunchTemplate(_ context.Context, p *ekssim.Parameters) (any, error) {
	name, versions := p.Need("LaunchTemplateName"), p.List("LaunchTemplateVersion")
	if err := p.End(); err != nil {
		return nil, err
	}
	states := t.machines.States()
	i := slices.IndexFunc(states, func(state cloud.State) bool { return launchTemplateOf(state.Name) == name })
	if i < 0 {
		return nil, ekssim.Refused("InvalidLaunchTemplateName.NotFoundException", "At least one of the launch templates specified in the request does not exist: %s.", name)
	}
	if unknown := slices.DeleteFunc(versions, func(v string) bool { return v == "1" || v == "$Default" || v == "$Latest" }); len(unknown) > 0 {
		return nil, ekssim.Refused("InvalidLaunchTemplateId.VersionNotFound", "Could not find launch template version(s): %s.", strings.Join(unknown, ", "))
	}
	body := describeTemplatesResponse{RequestID: ekssim.RequestID}
	body.Versions.Items = []templateVersion{{Name: name, Version: 1, Default: true, InstanceType: states[i].InstanceType, Image: cloud.Image}}
	return body, nil
}

func ec2Error(r *ekssim.Refusal) any {
	return struct {
		XMLName xml.Name `xml:"Response"`
		Code    string   `xml:"Errors>Error>Code"`
		Message string   `xml:"Errors>Error>Message"`
		ID      string   `xml:"RequestID"`
	}{Code: r.Code, Message: r.Message, ID: ekssim.RequestID}
}
