package doctor

import "slices"

// Checks are all checks, by theme.
func Checks() []Check {
	return slices.Concat(serverChecks(), installationChecks(), sliceChecks(), driverChecks(), nodeChecks(),
		groupChecks(), autoscalerChecks(), workloadChecks())
}
