package fit

import "testing"

// Only an expression that may read any attribute keeps nodes apart whose UUIDs differ, which is
// all nodes.
func TestExpressionsReadWhatTheyName(t *testing.T) {
	for expression, everything := range map[string]bool{
		`device.driver == "gpu.nvidia.com"`:                                                                  false,
		`device.attributes["gpu.nvidia.com"].type == "gpu"`:                                                  false,
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("70Gi")) >= 0`:                          false,
		`device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("1.2.3"))`:                   false,
		`device.attributes["gpu.nvidia.com"].?productName.orValue("") == "H100"`:                             false,
		`cel.bind(gpu, device.attributes["gpu.nvidia.com"], gpu.type == "gpu" && gpu.?index.orValue(0) > 1)`: false,
		`device.attributes["gpu.nvidia.com"].exists(name, name == "uuid")`:                                   true,
		`device.attributes["gpu.nvidia.com"][device.driver] == "gpu"`:                                        true,
		`"type" in device.attributes["gpu.nvidia.com"]`:                                                      false,
		`device.attributes["gpu.nvidia.com"].type in ["gpu", "mig"]`:                                         false,
		`size(device.attributes["gpu.nvidia.com"].type) == 3`:                                                false,
		`device.driver in device.attributes["gpu.nvidia.com"]`:                                               true,
		`size(device.attributes["gpu.nvidia.com"]) > 5`:                                                      true,
		`device.attributes["gpu.nvidia.com"].size() > 5`:                                                     true,
		`device.attributes == device.attributes`:                                                             true,
	} {
		if got := newReading(expression); got.err != nil || got.everything != everything {
			t.Errorf("%s: reads everything %v (%v), want %v", expression, got.everything, got.err, everything)
		}
	}
}
