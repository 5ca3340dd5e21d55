// Package e2e holds the end-to-end tests of an installed Mica, against whatever cluster
// KUBECONFIG names. It uses the Kubernetes API as a user would, and, on a cluster of
// test/cluster, the node's processes, files and simulated hardware; it never calls the
// driver's own packages.
//
// The tests are built with the tag e2e only. They fail, with a sentence, where there is no
// cluster or no driver. A test skips itself only where the cluster cannot offer what it
// needs, such as access to the node. If MICA_E2E_NO_SKIP is set, only tests that
// MICA_E2E_MAY_SKIP names do.
//
// Environment:
//
//	KUBECONFIG               the cluster
//	MICA_E2E_WORKLOAD_IMAGE  image of test/cluster/workload (default mica.local/workload:dev)
//	MICA_E2E_NODE            node to test (default: the one with most GPUs)
//	MICA_E2E_SIM_NODE        node file that the simulator plays (default: that of the cluster of
//	                         test/cluster), whose slices are compared with a golden file
//	MICA_E2E_NO_SKIP         set: a test that would skip itself fails
//	MICA_E2E_MAY_SKIP        names of tests that may skip themselves even so
//	MICA_PROMTOOL            promtool, which plays the tests of the alerts
//	MICA_E2E_LAST            set: all other tests have run, so TestEachRightIsUsed and TestUninstall run, too
//	MICA_E2E_NODE_LOGS       logs of the cluster on which hack/e2e.sh ran the tests of the node, if it is another
//	MICA_E2E_OLDER           set: the control plane is older, and TestOnAnOlderKubernetes runs (hack/older.sh)
//	MICA_E2E_BENCH_ROUNDS    rounds of a benchmark (default 5)
//	MICA_SIM_SOCKET          socket of the node's simulated hardware, on which tests partition GPUs
//	                         and inject faults; what they would do to real GPUs is not done
//	MICA_CLUSTER_DIR         directory of a cluster of test/cluster on this machine
//	MICA_CLUSTER             its program, with which tests restart kubelet and name images (default ../../bin/cluster)
package e2e
