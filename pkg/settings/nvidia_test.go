package settings_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2/textlogger"

	"github.com/mica-gpu/mica/pkg/settings"
)

// parse sets flags as a command line does, and returns what is logged of them.
func parse(t *testing.T, arguments ...string) (log string, err error) {
	t.Helper()
	logging := settings.NewLogging()
	set := pflag.NewFlagSet("plugin", pflag.ContinueOnError)
	set.SetOutput(new(bytes.Buffer))
	logging.AddFlags(set)
	settings.AddNVIDIAFlags(set)
	if err := set.Parse(arguments); err != nil {
		return "", err
	}
	var output bytes.Buffer
	logging.WarnOfNVIDIAs(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&output))), set)
	return output.String(), nil
}

// Values written for NVIDIA's driver must not end the process on every node.
func TestSettingsOfNVIDIAsDriverAreAcceptedWithAWarning(t *testing.T) {
	for gate, instead := range settings.NVIDIAGates {
		expectWarning(t, "--feature-gates=ContextualLogging=true,"+gate+"=true,", `featureGate="`+gate+`" value=true`, instead)
	}
	for flag, instead := range settings.NVIDIAFlags {
		expectWarning(t, "--"+flag+"=x", `flag="--`+flag+`"`, instead)
	}
}

func expectWarning(t *testing.T, argument string, wants ...string) {
	t.Helper()
	log, err := parse(t, argument)
	if err != nil {
		t.Errorf("%s: %v", argument, err)
	}
	if lines := strings.Count(log, "\n"); lines != 1 {
		t.Errorf("%s: got %d lines, want one warning:\n%s", argument, lines, log)
	}
	for _, want := range wants {
		if !strings.Contains(log, want) {
			t.Errorf("%s: the log does not say %q:\n%s", argument, want, log)
		}
	}
}

func TestOwnSettingsBringNoWarning(t *testing.T) {
	if log, err := parse(t, "--feature-gates=ContextualLogging=true", "-v=2"); err != nil || log != "" {
		t.Errorf("got error %v and the log %q, want neither", err, log)
	}
}

func TestFeatureGatesThatAreRefused(t *testing.T) {
	for value, want := range map[string]string{
		"MIG=true":              `the feature gate "MIG" is unknown: remove it, or choose from [AllAlpha AllBeta ContextualLogging`,
		"MPSSupport":            `the feature gate MPSSupport is "": set it to true or false`,
		"MPSSupport=yes":        `the feature gate MPSSupport is "yes": set it to true or false`,
		"ContextualLogging=yes": `the feature gate ContextualLogging is "yes": set it to true or false`,
	} {
		if _, err := parse(t, "--feature-gates="+value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", value, err, want)
		}
	}
}
