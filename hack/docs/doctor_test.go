package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
	"github.com/mica-gpu/mica/test/fixture"
)

// command matches a fix to copy, and ran the last line of the example.
var (
	command = regexp.MustCompile(`^(kubectl|helm|aws) `)
	ran     = regexp.MustCompile(`\d+ of \d+ checks ran`)
)

// The page lists the checks of the code. With -update, this test writes the list.
func TestTheDoctorsChecksAreDocumented(t *testing.T) {
	const heading = "## All checks\n\n"
	written, _, found := strings.Cut(read(t, "../../docs/operate/doctor.md"), heading)
	if !found {
		t.Fatalf("docs/operate/doctor.md has no heading %q", heading)
	}
	var page strings.Builder
	written = ran.ReplaceAllString(written, fmt.Sprintf("%[1]d of %[1]d checks ran", len(doctor.Checks())))
	page.WriteString(written + heading + fmt.Sprintf("There are %d. Words in capitals stand for names from a finding.\n", len(doctor.Checks())))
	for _, check := range doctor.Checks() {
		fmt.Fprintf(&page, "\n### %s\n\n%s: %s\n\n", check.Name, strings.ToTitle(string(check.Severity[:1]))+string(check.Severity[1:]), check.Finds)
		if command.MatchString(check.Fix) {
			fmt.Fprintf(&page, "```text\n%s\n```\n", check.Fix)
		} else {
			page.WriteString(check.Fix + "\n")
		}
	}
	fixture.Golden(t, "../../../docs/operate/doctor.md", page.String())
}

// The page lists the faults of Kubernetes that the doctor finds. With -update, this test writes the list.
func TestTheFaultsOfKubernetesAreDocumented(t *testing.T) {
	const end = "(../operate/doctor.md#kubernetes-release) finds them:\n\n"
	written, _, found := strings.Cut(read(t, "../../docs/start/compatibility.md"), end)
	if !found {
		t.Fatalf("docs/start/compatibility.md does not end in a list after %q", end)
	}
	page := written + end + "| fault | part | from | fixed in |\n|---|---|---|---|\n"
	for _, fault := range doctor.Faults() {
		part := "control plane"
		if fault.Kubelet {
			part = "kubelet"
		}
		page += fmt.Sprintf("| %s%s ([#%[3]d](https://github.com/kubernetes/kubernetes/issues/%[3]d)) | %s | %s | %s |\n",
			strings.ToUpper(fault.Harm[:1]), fault.Harm[1:], fault.Issue, part, fault.Since, strings.Join(fault.Fixed, ", "))
	}
	fixture.Golden(t, "../../../docs/start/compatibility.md", page)
}
