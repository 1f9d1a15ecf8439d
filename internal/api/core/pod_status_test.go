package core

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind/kindtest"
)

func TestPodStatusPrepare(t *testing.T) {
	old := testPod(podSpec(`resourceClaims: [{name: c, resourceClaimTemplateName: t}]`), podStatus(`
qosClass: BestEffort
observedGeneration: 3
conditions: [{type: Ready, status: "True", observedGeneration: 2}]
resourceClaimStatuses: [{name: c, resourceClaimName: made}]
extendedResourceClaimStatus: {resourceClaimName: x, requestMappings: []}`))
	next := testPod(podSpec(`nodeName: other`), podStatus(`
phase: Running
conditions: [{type: Ready, status: "False"}, {type: Initialized, status: "True", observedGeneration: 9}]
containerStatuses: [{name: web, volumeMounts: [{name: v, mountPath: /x, volumeStatus: {image: {imageRef: r}}}]}]
volumeHealth: [{name: v}]
nodeAllocatableResourceClaimStatuses: [{resourceClaimName: made}]`))
	pod, _ := kindtest.UpdateSubresource(Pod, "status", testNow, next, old)
	status := &pod.Status
	if pod.Spec.NodeName != "" || status.Phase != corev1.PodRunning {
		t.Errorf("not the status alone changed: %v", pod)
	}
	if status.QOSClass != corev1.PodQOSBestEffort || len(status.ResourceClaimStatuses) != 1 || status.ExtendedResourceClaimStatus == nil {
		t.Errorf("what the writer does not know is lost: %v", status)
	}
	if status.ObservedGeneration != 3 || status.Conditions[0].ObservedGeneration != 2 || status.Conditions[1].ObservedGeneration != 9 {
		t.Errorf("generations: %v", status)
	}
	if status.VolumeHealth != nil || status.NodeAllocatableResourceClaimStatuses != nil || status.ContainerStatuses[0].VolumeMounts[0].VolumeStatus != nil {
		t.Errorf("fields of disabled features stay: %v", status)
	}
}

func TestPodStatus(t *testing.T) {
	base := testPod(podSpec(`
restartPolicy: OnFailure
resourceClaims: [{name: c, resourceClaimTemplateName: t}, {name: d, resourceClaimName: own}]
containers:
- {name: web, image: i, resources: {requests: {example.com/gpu: 1}, limits: {example.com/gpu: 1}, claims: [{name: c, request: r}, {name: d}]}}
- {name: rules, image: i, restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [7]}}]}
initContainers: [{name: in, image: i}, {name: side, image: i, restartPolicy: Always}]
ephemeralContainers: [{name: e, image: i}]`), podStatus(`
qosClass: BestEffort
containerStatuses: [{name: web, state: {terminated: {exitCode: 0}}}, {name: rules, state: {terminated: {exitCode: 7}}}]
initContainerStatuses: [{name: in, state: {terminated: {exitCode: 1}}}, {name: side, state: {terminated: {exitCode: 0}}}]
ephemeralContainerStatuses: [{name: e, state: {terminated: {exitCode: 1}}}]`))
	const again = "may not be transitioned to non-terminated state"
	kindtest.StatusUpdates(t, Pod, base, []kindtest.Case[*corev1.Pod]{
		{Name: "nothing"},
		{Name: "conditions", Change: podStatus(`conditions: [{type: "bad type!", observedGeneration: -1}, {type: Ready}]`), Want: []string{
			"status.conditions[0].Type: Invalid value", "status.conditions[0].observedGeneration: Invalid value: -1: must be a non-negative integer"}},
		{Name: "a nominated node", Change: podStatus(`nominatedNodeName: node`)},
		{Name: "a bad nominated node", Change: podStatus(`nominatedNodeName: Bad_`), Want: []string{"status.nominatedNodeName: Invalid value"}},
		{Name: "generation", Change: podStatus(`observedGeneration: -1`), Want: []string{"status.observedGeneration: Invalid value: -1: must be a non-negative integer"}},
		{Name: "another class", Change: podStatus(`qosClass: Guaranteed`), Want: []string{"status.qosClass: Invalid value: \"Guaranteed\": field is immutable"}},
		{Name: "what may restart", Change: podStatus(`
containerStatuses: [{name: rules, state: {running: {}}}]
initContainerStatuses: [{name: in, state: {running: {}}}, {name: side, state: {running: {}}}]`)},
		{Name: "what may not", Change: podStatus(`
containerStatuses: [{name: web, state: {waiting: {}}}]
ephemeralContainerStatuses: [{name: e, state: {running: {}}}]`), Want: []string{"status.containerStatuses[0].state: Forbidden: " + again, "status.ephemeralContainerStatuses[0].state: Forbidden: " + again}},
		{Name: "claims", Change: podStatus(`resourceClaimStatuses: [{name: c, resourceClaimName: Bad_}, {name: c}, {name: gone}]`), Want: []string{
			"status.resourceClaimStatuses[0].resourceClaimName: Invalid value", "status.resourceClaimStatuses[1].name: Duplicate value", "status.resourceClaimStatuses[2].name: Invalid value: \"gone\": must match the name"}},
		{Name: "extended claim", Change: podStatus(`extendedResourceClaimStatus: {resourceClaimName: "", requestMappings: [{containerName: web, resourceName: cpu, requestName: Bad_}, {containerName: gone, resourceName: x, requestName: r}, {containerName: web, resourceName: example.com/gpu, requestName: r}, {containerName: web, resourceName: example.com/gpu, requestName: r}]}`), Want: []string{
			"status.extendedResourceClaimStatus.resourceClaimName: Required value",
			"status.extendedResourceClaimStatus.requestName: Invalid value",
			"status.extendedResourceClaimStatus.requestMappings[0].resourceName: Invalid value",
			"status.extendedResourceClaimStatus.requestMappings[1].containerName: Invalid value",
			"status.extendedResourceClaimStatus.requestMappings[3].containerName: Duplicate value",
			"status.extendedResourceClaimStatus.requestMappings[3].resourceName: Duplicate value",
			"status.extendedResourceClaimStatus.requestMappings[3].requestName: Duplicate value"}},
		{Name: "an extended claim for nothing", Change: podStatus(`extendedResourceClaimStatus: {resourceClaimName: x}`), Want: []string{"status.extendedResourceClaimStatus.requestMappings: Required value: at least one"}},
		{Name: "addresses", Change: podStatus(`{podIP: 1.1.1.1, podIPs: [{ip: 1.1.1.1}, {ip: "::1"}], hostIP: 2.2.2.2, hostIPs: [{ip: 2.2.2.2}]}`)},
		{Name: "bad addresses", Change: podStatus(`{podIP: bad, hostIP: 2.2.2.2, hostIPs: [{ip: 3.3.3.3}]}`), Want: []string{
			"status.podIPs[0]: Invalid value", "status.hostIPs[0].ip: Invalid value: \"3.3.3.3\": must be equal to `hostIP`"}},
		{Name: "two of a family", Change: podStatus(`podIPs: [{ip: 1.1.1.1}, {ip: 2.2.2.2}]`), Want: []string{"status.podIPs: Invalid value: [{\"ip\":\"1.1.1.1\"},{\"ip\":\"2.2.2.2\"}]: may specify no more than one IP for each IP family"}},
		{Name: "users", Change: podStatus(`containerStatuses: [{name: web, state: {terminated: {exitCode: 0}}, user: {linux: {uid: -1, gid: -1, supplementalGroups: [-1]}}}]`), Want: []string{
			"status.containerStatuses[0].user.linux.uid: Invalid value: -1: must be between 0 and 4294967295, inclusive", "status.containerStatuses[0].user.linux.gid: Invalid value", "status.containerStatuses[0].user.linux.supplementalGroups[0]: Invalid value"}},
		{Name: "devices", Change: podStatus(`
containerStatuses:
- name: web
  state: {terminated: {exitCode: 0}}
  allocatedResourcesStatus:
  - {name: example.com/gpu, resources: [{resourceID: a, health: Healthy}, {resourceID: a, health: Sick, message: ""}]}
  - {name: example.com/other}
  - {name: "claim:c/r"}
  - {name: "claim:d"}
  - {name: "claim:c"}
ephemeralContainerStatuses: [{name: e, state: {terminated: {exitCode: 1}}, allocatedResourcesStatus: [{name: x}]}]`), Want: []string{
			"status.containerStatuses[0].allocatedResourcesStatus[0].resources[1].health: Unsupported value: \"Sick\"",
			"status.containerStatuses[0].allocatedResourcesStatus[0].resources[1].message: Required value: must be non-empty if specified",
			"status.containerStatuses[0].allocatedResourcesStatus[0].resources[1].resourceID: Duplicate value",
			"status.containerStatuses[0].allocatedResourcesStatus[1].name: Invalid value: \"example.com/other\": must match one of the container's resource requests",
			"status.containerStatuses[0].allocatedResourcesStatus[4].name: Invalid value: \"claim:c\": must match one of the container's resource claims",
			"status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status"}},
	})

	bound := testPod(podSpec(`nodeName: node`))
	kindtest.StatusUpdates(t, Pod, bound, []kindtest.Case[*corev1.Pod]{
		{Name: "a nominated node for a bound pod", Change: podStatus(`nominatedNodeName: m`), Want: []string{"status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node"}},
	})
	windows := testPod(podSpec(`os: {name: windows}`))
	kindtest.StatusUpdates(t, Pod, windows, []kindtest.Case[*corev1.Pod]{
		{Name: "a linux user on windows", Change: podStatus(`containerStatuses: [{name: web, user: {linux: {uid: 1, gid: 1}}}]`), Want: []string{"status.containerStatuses[0].user.linux: Forbidden: cannot be set for a windows pod"}},
	})
	restartsAll := testPod(podSpec(`{restartPolicy: Never, containers: [{name: web, image: i, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]}]}`),
		podStatus(`containerStatuses: [{name: web, state: {terminated: {exitCode: 0}}}]`))
	kindtest.StatusUpdates(t, Pod, restartsAll, []kindtest.Case[*corev1.Pod]{
		{Name: "where one container can restart all", Change: podStatus(`containerStatuses: [{name: web, state: {running: {}}}]`)},
	})
	stored := testPod(podStatus(`{volumeHealth: [{name: gone}], nodeAllocatableResourceClaimStatuses: [{resourceClaimName: x}]}`))
	kindtest.StatusUpdates(t, Pod, stored, []kindtest.Case[*corev1.Pod]{
		{Name: "features another server had on", Change: podStatus(`{volumeHealth: [{name: gone, healthConditions: [{reason: "bad reason!"}]}], nodeAllocatableResourceClaimStatuses: [{resourceClaimName: x, mapping: [{name: gpu, quantity: -1}], overhead: [{name: cpu}, {name: memory, perPod: -1, perContainer: -1}]}]}`), Want: []string{
			"status.volumeHealth[0].name: Not found", "status.volumeHealth[0].healthConditions[0].reason: Invalid value",
			"status.nodeAllocatableResourceClaimStatuses[0].resourceClaimName: Invalid value: \"x\": no mapping found in pod reference",
			"status.nodeAllocatableResourceClaimStatuses[0].mapping[0].name: Invalid value", "status.nodeAllocatableResourceClaimStatuses[0].mapping[0].quantity: Invalid value",
			"status.nodeAllocatableResourceClaimStatuses[0].overhead[0]: Invalid value", "status.nodeAllocatableResourceClaimStatuses[0].overhead[1].perPod: Invalid value",
			"status.nodeAllocatableResourceClaimStatuses[0].overhead[1].perContainer: Invalid value"}},
	})
}

func TestPodStatusWarnings(t *testing.T) {
	part := Pod.Subresources[0].Update
	kindtest.Warnings(t, part.Warn(testPod(podStatus(`{podIPs: [{ip: "1:0::1"}], hostIPs: [{ip: 1.1.1.1}]}`)), testPod()),
		`status.podIPs[0].ip: IPv6 address "1:0::1" should be in RFC 5952 canonical format`)
}
