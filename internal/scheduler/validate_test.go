package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
)

// argumentError is what is said of a plugin's arguments, under paths from there; empty when they are accepted.
func argumentError(t testing.TB, name, arguments string) string {
	t.Helper()
	if err := argumentValidators[name](nil, name, []byte(arguments)).ToAggregate(); err != nil {
		return err.Error()
	}
	return ""
}

// withArguments is a configuration whose profile has arguments for a plugin.
func withArguments(plugin, arguments string) string {
	return "profiles: [{pluginConfig: [{name: " + plugin + ", args: " + arguments + "}]}]"
}

// What upstream refuses is refused, under the same field paths and in the same words; all of it at once.
func TestConfigurationErrors(t *testing.T) {
	const arguments = "profiles[0].pluginConfig[0].args"
	const long = "a123456789012345678901234567890123456789012345678901234567890123456789"
	for _, test := range []struct {
		name, fields string
		want         []string // none: the file is fine
	}{
		{"nothing is needed", "", nil},
		{"a field nobody knows", "unknown: 1", []string{`parse scheduler configuration: unknown field "unknown"`}},
		{"parallelism is positive", "parallelism: 1", nil},
		{"no parallelism", "parallelism: 0", []string{"parallelism: Invalid value: 0: should be an integer value greater than zero"}},
		{"negative parallelism", "parallelism: -1", []string{"parallelism: Invalid value: -1: should be an integer value greater than zero"}},
		{"a percentage of 0", "percentageOfNodesToScore: 0", nil},
		{"a percentage of 100", "percentageOfNodesToScore: 100", nil},
		{"a percentage above", "percentageOfNodesToScore: 101", []string{"percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"}},
		{"a percentage below", "percentageOfNodesToScore: -1", []string{"percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]"}},
		{"a profile's percentage", "profiles: [{percentageOfNodesToScore: 101}]", []string{"profiles[0].percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"}},
		{"a profile's percentage within", "profiles: [{percentageOfNodesToScore: 40}]", nil},

		{"no first backoff", "podInitialBackoffSeconds: 0", []string{"podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"}},
		{"a negative backoff", "podInitialBackoffSeconds: -1", []string{"podInitialBackoffSeconds: Invalid value: -1: must be greater than 0"}},
		{"a longest backoff like the first", "podInitialBackoffSeconds: 20\npodMaxBackoffSeconds: 20", nil},
		{"a longest backoff below the first", "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 4", []string{"podMaxBackoffSeconds: Invalid value: 4: must be greater than or equal to PodInitialBackoffSeconds"}},
		{"a first backoff above the usual longest", "podInitialBackoffSeconds: 11", []string{"podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds"}},
		{"a longest backoff below the usual first", "podMaxBackoffSeconds: 0", []string{"podMaxBackoffSeconds: Invalid value: 0: must be greater than or equal to PodInitialBackoffSeconds"}},

		{"a burst of requests", "clientConnection: {burst: 0, qps: -1}", nil},
		{"a negative burst", "clientConnection: {burst: -1}", []string{"clientConnection.burst: Invalid value: -1: must be non-negative"}},
		{"how to encode", "clientConnection: {contentType: application/json, acceptContentTypes: application/json, kubeconfig: /etc/k}", nil},
		{"an election with times of its own", "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 1s, resourceName: x, resourceNamespace: z, resourceLock: leases}", nil},
		{"a lease no longer than its renewal", "leaderElection: {leaseDuration: 10s, renewDeadline: 10s}", []string{"leaderElection.leaseDuration: Invalid value: \"10s\": must be greater than `RenewDeadline`"}},
		{"a lease shorter than the usual renewal", "leaderElection: {leaseDuration: 9s}", []string{"leaderElection.leaseDuration: Invalid value: \"10s\": must be greater than `RenewDeadline`"}},
		{"negative times", "leaderElection: {leaseDuration: -1s, renewDeadline: -2s, retryPeriod: -3s}", []string{
			`leaderElection.leaseDuration: Invalid value: "-1s": must be greater than zero`, `leaderElection.renewDeadline: Invalid value: "-2s": must be greater than zero`,
			`leaderElection.retryPeriod: Invalid value: "-3s": must be greater than zero`}},
		{"another kind of lock", "leaderElection: {resourceLock: endpoints}", []string{`leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases"`}},
		{"who does not compete needs no lock", "leaderElection: {leaderElect: false, resourceLock: endpoints, leaseDuration: -1s}", nil},

		{"a profile without a name is the usual one", "profiles: [{}]", nil},
		{"an empty name", "profiles: [{schedulerName: ''}]", []string{"profiles[0].schedulerName: Required value"}},
		{"two profiles need names", "profiles: [{}, {schedulerName: a}]", []string{"profiles[0].schedulerName: Required value"}},
		{"names are unique", "profiles: [{schedulerName: a}, {schedulerName: b}, {schedulerName: a}]", []string{`profiles[2].schedulerName: Duplicate value: "profiles[0].schedulerName"`}},
		{"no names at all", "profiles: [{}, {}]", []string{"profiles[0].schedulerName: Required value", "profiles[1].schedulerName: Required value", `profiles[1].schedulerName: Duplicate value: "profiles[0].schedulerName"`}},
		{"arguments twice", "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: NodeAffinity}]}]", []string{`profiles[0].pluginConfig[1]: Duplicate value: "NodeAffinity"`}},
		{"arguments of an unknown plugin", "profiles: [{pluginConfig: [{name: Magic, args: {spell: 1}}]}]", nil},
		{"plugins of earlier versions", "profiles: [{plugins: {filter: {enabled: [{name: NodePorts}, {name: EBSLimits}]}}, pluginConfig: [{name: GCEPDLimits}]}]", []string{
			`profiles[0].plugins.filter.enabled[1]: Invalid value: "EBSLimits": was invalid in version "kubescheduler.config.k8s.io/v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")`,
			`profiles[0].pluginConfig[0]: Invalid value: "GCEPDLimits": was invalid in version "kubescheduler.config.k8s.io/v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")`}},
		{"a negative weight", "profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}}]", []string{"profiles[0].plugins.score.enabled[0].weight: Invalid value: -1: must not be negative"}},
		{"one queue, one order", "profiles: [{schedulerName: a, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}]", nil},
		{"different orders", "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}]", []string{`profiles[1].plugins.queueSort: Invalid value: "PrioritySort": must be the same for all profiles`}},
		{"two orders", "profiles: [{plugins: {queueSort: {enabled: [{name: PrioritySort}, {name: Other}]}}}]", []string{"profiles[0].plugins.queueSort.Enabled: Invalid value: 2: only one queue sort plugin can be enabled"}},

		{"any extender", "extenders: [{urlPrefix: 'http://x'}]", nil},
		{"an extender that scores has a weight", "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: 1}]", nil},
		{"a score of no weight", "extenders: [{urlPrefix: 'http://x'}, {urlPrefix: 'http://x', prioritizeVerb: p}]", []string{"extenders[1].weight: Invalid value: 0: must have a positive weight applied to it"}},
		{"a score of negative weight", "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: -2}]", []string{"extenders[0].weight: Invalid value: -2: must have a positive weight applied to it"}},
		{"one binder", "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y'}]", nil},
		{"two binders", "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]", []string{`extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind`}},
		{"what extenders manage", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: a.b/c}, {name: a.b/c.d}]}]", nil},
		{"a resource of Kubernetes", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: cpu}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name`}},
		{"a resource under Kubernetes' name", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: kubernetes.io/c}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "kubernetes.io/c": is an invalid extended resource name`}},
		{"a quota is no resource", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: requests.a.b/c}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "requests.a.b/c": is an invalid extended resource name`}},
		{"a name that is none", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: 'a b'}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "a b": name part must consist of alphanumeric characters`}},
		{"a resource managed twice", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: a.b/c}]}, {urlPrefix: 'http://y', managedResources: [{name: a.b/d}, {name: a.b/c}]}]", []string{`extenders[1].managedResources[1].name: Invalid value: "a.b/c": duplicate extender managed resource name`}},
		{"certificates that are not there", "extenders: [{urlPrefix: 'https://x', enableHTTPS: true, tlsConfig: {caFile: /does/not/exist}}]", []string{"extenders[0]: tlsConfig: open /does/not/exist"}},
		{"everything wrong is reported", "parallelism: 0\npercentageOfNodesToScore: 200\nextenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]", []string{
			"parallelism: Invalid value: 0", "percentageOfNodesToScore: Invalid value: 200", "extenders[0].weight: Invalid value: 0"}},

		{"arguments of unknown fields", withArguments("NodeResourcesFit", "{scoring: 1}"), []string{arguments + `: Invalid value: "{\"scoring\":1}": decoding args for plugin NodeResourcesFit: strict decoding error: unknown field "scoring"`}},
		{"arguments that are none", withArguments("NodeResourcesFit", "7"), []string{arguments + `: Invalid value: "7": decoding args for plugin NodeResourcesFit:`}},
		{"arguments that say of what kind they are", withArguments("NodeAffinity", "{apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs}"), nil},
		{"arguments of another plugin", withArguments("NodeAffinity", "{apiVersion: kubescheduler.config.k8s.io/v1, kind: VolumeBindingArgs}"),
			[]string{"args for plugin NodeAffinity were not of type NodeAffinityArgs.kubescheduler.config.k8s.io, got VolumeBindingArgs.kubescheduler.config.k8s.io"}},
		{"arguments of another group", withArguments("NodeAffinity", "{apiVersion: v1, kind: NodeAffinityArgs}"), []string{"args for plugin NodeAffinity were not of type NodeAffinityArgs.kubescheduler.config.k8s.io, got NodeAffinityArgs"}},

		{"an affinity that is added", withArguments("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}, preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchFields: [{key: metadata.name, operator: In, values: [n1]}]}}]}}"), nil},
		{"an affinity with an operator nobody knows", withArguments("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}, {matchExpressions: [{key: a, operator: Near}]}]}}}"),
			[]string{arguments + `.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[0].operator: Unsupported value: "Near"`}},
		{"a preference for a field that only supports equality", withArguments("NodeAffinity", "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchFields: [{key: metadata.name, operator: Exists}]}}]}}"),
			[]string{arguments + `.addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].matchFields[0].operator: Unsupported value: "Exists"`}},
		{"both", withArguments("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Gt, values: [x]}]}]}, preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: In}]}}]}}"),
			[]string{arguments + ".addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values", arguments + ".addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].matchExpressions[0].values"}},

		{"a weight of affinity", withArguments("InterPodAffinity", "{hardPodAffinityWeight: 100, ignorePreferredTermsOfExistingPods: true}"), nil},
		{"no weight of affinity", withArguments("InterPodAffinity", "{hardPodAffinityWeight: 0}"), nil},
		{"a weight of affinity above", withArguments("InterPodAffinity", "{hardPodAffinityWeight: 101}"), []string{arguments + ".hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"}},
		{"a weight of affinity below", withArguments("InterPodAffinity", "{hardPodAffinityWeight: -1}"), []string{arguments + ".hardPodAffinityWeight: Invalid value: -1: not in valid range [0, 100]"}},

		{"how many candidates", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 1}"), nil},
		{"a percentage of candidates alone", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 0}"), nil},
		{"candidates above", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 101}"), []string{arguments + ".minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]"}},
		{"candidates below", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: -1, minCandidateNodesAbsolute: -1}"), []string{
			arguments + ".minCandidateNodesPercentage: Invalid value: -1: not in valid range [0, 100]", arguments + ".minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)"}},
		{"no candidates", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}"), []string{
			arguments + ".minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute",
			arguments + ".minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage"}},

		{"balanced resources", withArguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: a.b/c, weight: 1}]}"), nil},
		{"balance knows no weights", withArguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu, weight: 2}]}"), []string{arguments + ".resources[0].weight: Invalid value: 2: must be 1"}},
		{"balanced twice", withArguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: cpu}]}"), []string{arguments + `.resources[1].name: Duplicate value: "cpu"`}},

		{"a strategy", withArguments("NodeResourcesFit", "{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 100}, {name: memory}]}}"), nil},
		{"a strategy nobody knows", withArguments("NodeResourcesFit", "{scoringStrategy: {type: Best}}"), []string{arguments + `.scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"`}},
		{"a strategy without a name", withArguments("NodeResourcesFit", "{scoringStrategy: {resources: [{name: cpu}]}}"), []string{arguments + `.scoringStrategy.type: Unsupported value: ""`}},
		{"a weight above", withArguments("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu}, {name: memory, weight: 101}]}}"), []string{arguments + ".scoringStrategy.resources[1].weight: Invalid value: 101: resource weight of memory not in valid range (0, 100]"}},
		{"a weight below", withArguments("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: -1}]}}"), []string{arguments + ".scoringStrategy.resources[0].weight: Invalid value: -1: resource weight of cpu not in valid range (0, 100]"}},
		{"a ratio", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}}"), nil},
		{"a ratio without a shape", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {}}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified"}},
		{"no ratio", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio"}},
		{"a ratio of another strategy", withArguments("NodeResourcesFit", "{scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}]}}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio"}},
		{"a shape that does not grow", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5}, {utilization: 5}, {utilization: 4}]}}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 5: values must be sorted in increasing order"}},
		{"a shape out of bounds", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: -1, score: -1}, {utilization: 101, score: 11}]}}}"), []string{
			"shape[0].utilization: Invalid value: -1: not in valid range [0, 100]", "shape[0].score: Invalid value: -1: not in valid range [0, 10]",
			"shape[1].utilization: Invalid value: 101: not in valid range [0, 100]", "shape[1].score: Invalid value: 11: not in valid range [0, 10]"}},
		{"ignored resources", withArguments("NodeResourcesFit", "{ignoredResources: [a.b/c], ignoredResourceGroups: [a.b]}"), nil},
		{"ignored names that are none", withArguments("NodeResourcesFit", "{ignoredResources: [ok, 'a b'], ignoredResourceGroups: [a/b, 'a b']}"), []string{
			arguments + `.ignoredResources[1]: Invalid value: "a b"`, arguments + `.ignoredResourceGroups[0]: Invalid value: "a/b": resource group name can't contain '/'`, arguments + `.ignoredResourceGroups[1]: Invalid value: "a b"`}},

		{"a time for volumes", withArguments("VolumeBinding", "{bindTimeoutSeconds: 0}"), nil},
		{"a negative time for volumes", withArguments("VolumeBinding", "{bindTimeoutSeconds: -1}"), []string{arguments + ".bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value"}},
		{"a shape of capacity", withArguments("VolumeBinding", "{shape: [{utilization: 100, score: 1}, {utilization: 0, score: 1}]}"), []string{arguments + ".shape[1].utilization: Invalid value: 0: values must be sorted in increasing order"}},

		{"spread as the system does", withArguments("PodTopologySpread", "{defaultingType: System}"), nil},
		{"spread by a list", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}"), nil},
		{"spread by nothing", withArguments("PodTopologySpread", "{defaultingType: List}"), nil},
		{"spread by nobody", withArguments("PodTopologySpread", "{defaultingType: Magic}"), []string{arguments + `.defaultingType: Unsupported value: "Magic": supported values: "System", "List"`}},
		{"a list that is not asked for", withArguments("PodTopologySpread", "{defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}"), []string{arguments + `.defaultingType: Invalid value: "System": when .defaultConstraints are not empty`}},
		{"constraints that say nothing", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{}]}"), []string{
			arguments + ".defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)", arguments + ".defaultConstraints[0].topologyKey: Required value: can not be empty",
			arguments + ".defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty"}},
		{"constraints that say it wrong", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: -1, topologyKey: 'a b', whenUnsatisfiable: Perhaps, labelSelector: {}}]}"), []string{
			arguments + ".defaultConstraints[0].maxSkew: Invalid value: -1: not in valid range (0, inf)", arguments + `.defaultConstraints[0].topologyKey: Invalid value: "a b"`,
			arguments + `.defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Perhaps": supported values: "DoNotSchedule", "ScheduleAnyway"`,
			arguments + ".defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod"}},
		{"constraints twice", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: z, whenUnsatisfiable: DoNotSchedule}]}"), []string{arguments + `.defaultConstraints[1]: Duplicate value: "{z, DoNotSchedule}"`}},
		{"too long a key", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: "+long+", whenUnsatisfiable: DoNotSchedule}]}"), []string{arguments + ".defaultConstraints[0].topologyKey: Invalid value: \"" + long}},

		{"times for devices", withArguments("DynamicResources", "{filterTimeout: 0s, bindingTimeout: 1s}"), nil},
		{"times for devices below", withArguments("DynamicResources", "{filterTimeout: -1s, bindingTimeout: 999ms}"), []string{
			arguments + `.filterTimeout: Invalid value: "-1s": must be zero or positive`, arguments + `.bindingTimeout: Invalid value: "999ms": must be at least 1 second`}},

		{"an unknown plugin", "profiles: [{plugins: {filter: {enabled: [{name: Magic}]}}}]", []string{`creating profile for scheduler name default-scheduler: FilterPlugin "Magic" does not exist`}},
		{"everywhere an unknown plugin", "profiles: [{schedulerName: s, plugins: {multiPoint: {enabled: [{name: Magic}]}}}]", []string{`creating profile for scheduler name s: PreFilterPlugin "Magic" does not exist`}},
		{"at a point of no plugins here", "profiles: [{plugins: {permit: {enabled: [{name: Magic}]}}}]", []string{`PermitPlugin "Magic" does not exist`}},
		{"an unknown plugin may be disabled", "profiles: [{plugins: {filter: {disabled: [{name: Magic}]}}}]", nil},
		{"a plugin twice at a point", "profiles: [{plugins: {score: {enabled: [{name: ImageLocality}, {name: ImageLocality, weight: 2}]}}}]", []string{`plugin "ImageLocality" already registered as "ScorePlugin"`}},
		{"a plugin at an extension point it does not extend", "profiles: [{plugins: {score: {enabled: [{name: NodePorts}]}}}]", []string{`plugin "NodePorts" does not extend ScorePlugin plugin`}},
		{"a plugin that only scores", "profiles: [{plugins: {filter: {enabled: [{name: ImageLocality}]}}}]", []string{`plugin "ImageLocality" does not extend FilterPlugin plugin`}},
		{"a plugin that does not preempt", "profiles: [{plugins: {postFilter: {enabled: [{name: NodeName}]}}}]", []string{`plugin "NodeName" does not extend PostFilterPlugin plugin`}},
		{"a plugin that does not extend preEnqueue", "profiles: [{plugins: {preEnqueue: {enabled: [{name: NodeName}]}}}]", []string{`plugin "NodeName" does not extend PreEnqueuePlugin plugin`}},
		{"a plugin that does not sort", "profiles: [{plugins: {queueSort: {enabled: [{name: NodeName}]}}}]", []string{`plugin "NodeName" does not extend QueueSortPlugin plugin`}},
		{"the binder does not filter", "profiles: [{plugins: {filter: {enabled: [{name: DefaultBinder}]}}}]", []string{`plugin "DefaultBinder" does not extend FilterPlugin plugin`}},
		{"the binder binds", "profiles: [{plugins: {bind: {enabled: [{name: DefaultBinder}]}}}]", nil},
		{"nobody binds", "profiles: [{schedulerName: s, plugins: {bind: {disabled: [{name: DefaultBinder}]}}}]", []string{`at least one bind plugin is needed for profile with scheduler name "s"`}},
		{"nobody sorts", "profiles: [{schedulerName: s, plugins: {queueSort: {disabled: [{name: '*'}]}}}]", []string{`only one queue sort plugin required for profile with scheduler name "s", but got 0`}},
		{"without everything somebody still has to sort and bind", "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: NodeName}, {name: PrioritySort}]}}}]", []string{"at least one bind plugin is needed"}},
		{"the least there can be", "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: DefaultBinder}, {name: PrioritySort}]}}}]", nil},
		{"weights beyond all bounds", "profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: 21474836}, {name: NodeResourcesFit, weight: 1}]}}}]", []string{"total score of Score plugins could overflow"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ParseConfiguration(schedulertest.Configuration(test.fields))
			if len(test.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatalf("no error, want %q", test.want)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v\nlacks %s", err, want)
				}
			}
			var many interface{ Errors() []error }
			if errors.As(err, &many) && len(many.Errors()) != len(test.want) {
				t.Errorf("%d errors, want %d: %v", len(many.Errors()), len(test.want), err)
			}
		})
	}
}

func TestNodeAffinityArguments(t *testing.T) {
	required := func(terms string) string {
		return `{"addedAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + terms + `]}}}`
	}
	preferred := func(terms string) string {
		return `{"addedAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[` + terms + `]}}`
	}
	const (
		requiredPath  = "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
		preferredPath = "addedAffinity.preferredDuringSchedulingIgnoredDuringExecution"
	)
	for _, test := range []struct{ what, arguments, fail string }{
		{"none", "", ""},
		{"empty", "{}", ""},
		{"of upstream's kind", `{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"NodeAffinityArgs"}`, ""},
		{"nothing is added", `{"addedAffinity":{}}`, ""},
		{"a term", required(`{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}`), ""},
		{"an empty term is read", required(`{}`), ""},
		{"no terms are read", required(``), ""},
		{"an operator nobody knows", required(`{"matchExpressions":[{"key":"a","operator":"Near","values":["b"]}]}`),
			requiredPath + `[0].matchExpressions[0].operator: Unsupported value: "Near": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"`},
		{"no values", required(`{"matchExpressions":[{"key":"a","operator":"Exists"},{"key":"a","operator":"In"}]}`),
			requiredPath + `[0].matchExpressions[1].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty`},
		{"a word where a number must be", required(`{},{"matchExpressions":[{"key":"a","operator":"Gt","values":["few"]}]}`),
			requiredPath + `[1].matchExpressions[0].values[0]: Invalid value: "few": for 'Gt', 'Lt' operators, the value must be an integer`},
		{"two names", required(`{"matchFields":[{"key":"metadata.name","operator":"In","values":["a","b"]}]}`),
			requiredPath + `[0].matchFields[0].values: Invalid value: ["a","b"]: must have one element`},
		{"a preference", preferred(`{"weight":1,"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}`), ""},
		{"a preference without weight is not read", preferred(`{"preference":{"matchExpressions":[{"key":"a","operator":"Near"}]}}`), ""},
		{"a preference that cannot be read", preferred(`{"weight":1,"preference":{}},{"weight":1,"preference":{"matchFields":[{"key":"metadata.name","operator":"Gt","values":["1"]}]}}`),
			preferredPath + `[1].matchFields[0].operator: Unsupported value: "Gt": supported values: "In", "NotIn"`},
		{"both cannot be read", `{"addedAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In"}]}]},
			"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchFields":[{"key":"metadata.name","operator":"In"}]}}]}}`,
			"[" + requiredPath + `[0].matchFields[0].values: Invalid value: null: must have one element, ` + preferredPath + `[0].matchFields[0].values: Invalid value: null: must have one element]`},
	} {
		if got := argumentError(t, plugins.NodeAffinityName, test.arguments); got != test.fail {
			t.Errorf("%s: %s, want %s", test.what, got, test.fail)
		}
	}
}

func TestNodeResourcesFitArguments(t *testing.T) {
	strategy := func(text string) string { return `{"scoringStrategy":` + text + `}` }
	ratio := func(points string) string {
		return strategy(`{"type":"RequestedToCapacityRatio","requestedToCapacityRatio":{"shape":[` + points + `]}}`)
	}
	const shape = "scoringStrategy.requestedToCapacityRatio.shape"
	for _, test := range []struct{ what, arguments, fail string }{
		{"none", "", ""},
		{"of upstream's kind", `{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"NodeResourcesFitArgs"}`, ""},
		{"least allocated", strategy(`{"type":"LeastAllocated"}`), ""},
		{"most allocated", strategy(`{"type":"MostAllocated","resources":[{"name":"cpu","weight":100},{"name":"memory","weight":1}]}`), ""},
		{"a weight that is left out is 1", strategy(`{"type":"MostAllocated","resources":[{"name":"cpu"}]}`), ""},
		{"a weight of 0 is 1", strategy(`{"type":"MostAllocated","resources":[{"name":"cpu","weight":0}]}`), ""},
		{"a strategy without type", strategy(`{}`), `scoringStrategy.type: Unsupported value: "": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"`},
		{"a type nobody knows", strategy(`{"type":"Best"}`), `scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"`},
		{"a weight below 0", strategy(`{"type":"LeastAllocated","resources":[{"name":"cpu","weight":-1}]}`), `scoringStrategy.resources[0].weight: Invalid value: -1: resource weight of cpu not in valid range (0, 100]`},
		{"a weight above 100", strategy(`{"type":"LeastAllocated","resources":[{"name":"cpu","weight":1},{"name":"memory","weight":101}]}`), `scoringStrategy.resources[1].weight: Invalid value: 101: resource weight of memory not in valid range (0, 100]`},
		{"a ratio", ratio(`{"utilization":0,"score":0},{"utilization":100,"score":10}`), ""},
		{"a ratio without shape", strategy(`{"type":"RequestedToCapacityRatio"}`), `scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio`},
		{"a ratio with an empty shape", ratio(``), shape + `: Required value: at least one point must be specified`},
		{"a shape without a ratio", strategy(`{"type":"LeastAllocated","requestedToCapacityRatio":{"shape":[{"utilization":0,"score":0}]}}`), `scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio`},
		{"a shape backwards", ratio(`{"utilization":50,"score":0},{"utilization":40,"score":1}`), shape + `[1].utilization: Invalid value: 40: values must be sorted in increasing order`},
		{"a resource nobody could name", `{"ignoredResources":["cpu","a resource"]}`, `ignoredResources[1]: Invalid value: "a resource": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`},
		{"a group with a name", `{"ignoredResourceGroups":["example.com/fpga"]}`, `ignoredResourceGroups[0]: Invalid value: "example.com/fpga": resource group name can't contain '/'`},
		{"two things wrong", `{"ignoredResourceGroups":["a/b"],"scoringStrategy":{"type":"Best"}}`,
			`[ignoredResourceGroups[0]: Invalid value: "a/b": resource group name can't contain '/', scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"]`},
	} {
		if got := argumentError(t, plugins.NodeResourcesFitName, test.arguments); got != test.fail {
			t.Errorf("%s: %s, want %s", test.what, got, test.fail)
		}
	}
	for _, test := range []struct{ what, arguments, fail string }{
		{"none", "", ""},
		{"two resources", `{"resources":[{"name":"cpu","weight":1},{"name":"example.com/fpga"}]}`, ""},
		{"weights", `{"resources":[{"name":"cpu","weight":2}]}`, `resources[0].weight: Invalid value: 2: must be 1`},
		{"one resource twice", `{"resources":[{"name":"cpu"},{"name":"memory"},{"name":"cpu"}]}`, `resources[2].name: Duplicate value: "cpu"`},
		{"one resource twice with a weight", `{"resources":[{"name":"cpu"},{"name":"cpu","weight":-1}]}`, `[resources[1].name: Duplicate value: "cpu", resources[1].weight: Invalid value: -1: must be 1]`},
	} {
		if got := argumentError(t, plugins.BalancedAllocationName, test.arguments); got != test.fail {
			t.Errorf("balance, %s: %s, want %s", test.what, got, test.fail)
		}
	}
}

func TestPodTopologySpreadArguments(t *testing.T) {
	list := func(constraints string) string {
		return `{"defaultingType":"List","defaultConstraints":[` + constraints + `]}`
	}
	const good = `{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}`
	for _, test := range []struct{ what, arguments, fail string }{
		{"none", "", ""},
		{"the system's", `{"defaultingType":"System"}`, ""},
		{"an empty list", `{"defaultingType":"List"}`, ""},
		{"a list", list(good), ""},
		{"one key, hard and soft", list(good + `,{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}`), ""},
		{"a type nobody knows", `{"defaultingType":"Some"}`, `defaultingType: Unsupported value: "Some": supported values: "System", "List"`},
		{"constraints beside the system's", `{"defaultConstraints":[` + good + `]}`, `defaultingType: Invalid value: "System": when .defaultConstraints are not empty`},
		{"constraints beside the system's, spelt out", `{"defaultingType":"System","defaultConstraints":[` + good + `]}`, `defaultingType: Invalid value: "System": when .defaultConstraints are not empty`},
		{"no skew", list(`{"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}`), `defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)`},
		{"a skew below 0", list(good + `,{"maxSkew":-1,"topologyKey":"rack","whenUnsatisfiable":"ScheduleAnyway"}`), `defaultConstraints[1].maxSkew: Invalid value: -1: not in valid range (0, inf)`},
		{"no key", list(`{"maxSkew":1,"whenUnsatisfiable":"ScheduleAnyway"}`), `defaultConstraints[0].topologyKey: Required value: can not be empty`},
		{"a key no label can have", list(`{"maxSkew":1,"topologyKey":"a key!","whenUnsatisfiable":"ScheduleAnyway"}`),
			`defaultConstraints[0].topologyKey: Invalid value: "a key!": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`},
		{"no action", list(`{"maxSkew":1,"topologyKey":"zone"}`), `defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty`},
		{"an action nobody knows", list(`{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"Maybe"}`), `defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Maybe": supported values: "DoNotSchedule", "ScheduleAnyway"`},
		{"a selector", list(`{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{}}`), `defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod`},
		{"one constraint twice", list(good + "," + good), `defaultConstraints[1]: Duplicate value: "{zone, ScheduleAnyway}"`},
		{"two things wrong", list(`{"topologyKey":"zone"}`), `[defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf), defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty]`},
	} {
		if got := argumentError(t, plugins.PodTopologySpreadName, test.arguments); got != test.fail {
			t.Errorf("%s: %s, want %s", test.what, got, test.fail)
		}
	}
}

func TestValidateShape(t *testing.T) {
	type shape = []configv1.UtilizationShapePoint
	const unsorted = "values must be sorted in increasing order"
	for _, test := range []struct {
		what  string
		shape shape
		fail  string
	}{
		{"none", nil, "shape: Required value: at least one point must be specified"},
		{"one point", shape{{Utilization: 50, Score: 5}}, ""},
		{"both ends", shape{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}, ""},
		{"below nothing", shape{{Utilization: -1, Score: 5}}, "shape[0].utilization: Invalid value: -1: not in valid range [0, 100]"},
		{"more than all", shape{{Utilization: 0}, {Utilization: 101, Score: 5}}, "shape[1].utilization: Invalid value: 101: not in valid range [0, 100]"},
		{"backwards", shape{{Utilization: 50, Score: 5}, {Utilization: 40, Score: 5}}, "shape[1].utilization: Invalid value: 40: " + unsorted},
		{"twice the same", shape{{Utilization: 50, Score: 5}, {Utilization: 50, Score: 6}}, "shape[1].utilization: Invalid value: 50: " + unsorted},
		{"backwards twice is said once", shape{{Utilization: 50}, {Utilization: 40}, {Utilization: 30}}, "shape[1].utilization: Invalid value: 40: " + unsorted},
		{"a score too high", shape{{Utilization: 50, Score: 11}}, "shape[0].score: Invalid value: 11: not in valid range [0, 10]"},
		{"a score too low", shape{{Utilization: 50, Score: -1}}, "shape[0].score: Invalid value: -1: not in valid range [0, 10]"},
		{"the order is said first", shape{{Utilization: 50, Score: 11}, {Utilization: 40}}, "[shape[1].utilization: Invalid value: 40: " + unsorted + ", shape[0].score: Invalid value: 11: not in valid range [0, 10]]"},
	} {
		got := ""
		if err := validateShape(test.shape, field.NewPath("shape")).ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != test.fail {
			t.Errorf("%s: %s, want %s", test.what, got, test.fail)
		}
	}
}

// Numbers and times of plugins' arguments, at their bounds and beyond; what is said, whole.
func TestArgumentBounds(t *testing.T) {
	const (
		weight, percentage, absolute = "hardPodAffinityWeight", "minCandidateNodesPercentage", "minCandidateNodesAbsolute"
		share, count                 = "not in valid range [0, 100]", "not in valid range [0, inf)"
		bothZero                     = "[minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute, minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage]"
	)
	for _, test := range []struct{ name, arguments, fail string }{
		{plugins.InterPodAffinityName, ``, ""}, {plugins.InterPodAffinityName, `{"hardPodAffinityWeight":null}`, ""}, {plugins.InterPodAffinityName, `{"hardPodAffinityWeight":0}`, ""},
		{plugins.InterPodAffinityName, `{"hardPodAffinityWeight":1}`, ""}, {plugins.InterPodAffinityName, `{"hardPodAffinityWeight":100}`, ""},
		{plugins.InterPodAffinityName, `{"hardPodAffinityWeight":-1}`, weight + ": Invalid value: -1: " + share},
		{plugins.InterPodAffinityName, `{"hardPodAffinityWeight":101}`, weight + ": Invalid value: 101: " + share},
		{plugins.InterPodAffinityName, `{"hardPodAffinityWeight":2147483647}`, weight + ": Invalid value: 2147483647: " + share},

		{plugins.DefaultPreemptionName, ``, ""}, {plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":0}`, ""}, {plugins.DefaultPreemptionName, `{"minCandidateNodesAbsolute":0}`, ""},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":1,"minCandidateNodesAbsolute":0}`, ""}, {plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":0,"minCandidateNodesAbsolute":1}`, ""},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":100,"minCandidateNodesAbsolute":2147483647}`, ""},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":101}`, percentage + ": Invalid value: 101: " + share},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":-1}`, percentage + ": Invalid value: -1: " + share},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesAbsolute":-1}`, absolute + ": Invalid value: -1: " + count},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":0,"minCandidateNodesAbsolute":-1}`, absolute + ": Invalid value: -1: " + count},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":-1,"minCandidateNodesAbsolute":-2}`, "[" + percentage + ": Invalid value: -1: " + share + ", " + absolute + ": Invalid value: -2: " + count + "]"},
		{plugins.DefaultPreemptionName, `{"minCandidateNodesPercentage":0,"minCandidateNodesAbsolute":0}`, bothZero},

		{plugins.VolumeBindingName, ``, ""}, {plugins.VolumeBindingName, `{"bindTimeoutSeconds":0,"shape":[]}`, ""}, {plugins.VolumeBindingName, `{"bindTimeoutSeconds":9223372036854775807}`, ""},
		{plugins.VolumeBindingName, `{"bindTimeoutSeconds":-1}`, "bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value"},
		{plugins.VolumeBindingName, `{"shape":[{"utilization":0,"score":0},{"utilization":100,"score":10}]}`, ""},
		{plugins.VolumeBindingName, `{"shape":[{"utilization":0,"score":11}]}`, "shape[0].score: Invalid value: 11: not in valid range [0, 10]"},
		{plugins.VolumeBindingName, `{"bindTimeoutSeconds":-2,"shape":[{"utilization":101,"score":0}]}`,
			"[bindTimeoutSeconds: Invalid value: -2: invalid BindTimeoutSeconds, should not be a negative value, shape[0].utilization: Invalid value: 101: " + share + "]"},

		{plugins.DynamicResourcesName, ``, ""}, {plugins.DynamicResourcesName, `{"filterTimeout":"0s","bindingTimeout":"1s"}`, ""}, {plugins.DynamicResourcesName, `{"filterTimeout":"1ns","bindingTimeout":"1h"}`, ""},
		{plugins.DynamicResourcesName, `{"filterTimeout":"-1ns"}`, `filterTimeout: Invalid value: "-1ns": must be zero or positive`},
		{plugins.DynamicResourcesName, `{"bindingTimeout":"999999999ns"}`, `bindingTimeout: Invalid value: "999.999999ms": must be at least 1 second`},
		{plugins.DynamicResourcesName, `{"bindingTimeout":"0s"}`, `bindingTimeout: Invalid value: "0s": must be at least 1 second`},
		{plugins.DynamicResourcesName, `{"filterTimeout":"-1m","bindingTimeout":"-1s"}`, `[filterTimeout: Invalid value: "-1m0s": must be zero or positive, bindingTimeout: Invalid value: "-1s": must be at least 1 second]`},
	} {
		if got := argumentError(t, test.name, test.arguments); got != test.fail {
			t.Errorf("%s %s: %s, want %s", test.name, test.arguments, got, test.fail)
		}
	}
}

// The arguments of every plugin are read strictly, and only as its own.
func TestArgumentsHaveThePluginsKind(t *testing.T) {
	for plugin := range argumentValidators {
		other := "VolumeBinding"
		if plugin == other {
			other = "NodeAffinity"
		}
		const typed = "apiVersion: kubescheduler.config.k8s.io/v1, kind: "
		for arguments, want := range map[string]string{
			"{}": "", "null": "", "{" + typed + plugin + "Args}": "",
			"{magic: 1}":                  `decoding args for plugin ` + plugin + `: strict decoding error: unknown field "magic"`,
			"{" + typed + other + "Args}": "args for plugin " + plugin + " were not of type " + plugin + "Args.kubescheduler.config.k8s.io, got " + other + "Args.kubescheduler.config.k8s.io",
		} {
			_, err := ParseConfiguration(schedulertest.Configuration(withArguments(plugin, arguments)))
			if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), "profiles[0].pluginConfig[0].args: Invalid value: ") || !strings.HasSuffix(err.Error(), ": "+want)) {
				t.Errorf("%s %s: %v, want %s", plugin, arguments, err, want)
			}
		}
	}
}

func TestRemovedPlugins(t *testing.T) {
	const why = ` was invalid in version "kubescheduler.config.k8s.io/v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")`
	for _, name := range []string{"AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"} {
		for _, point := range strings.Fields("preEnqueue queueSort preFilter filter postFilter preScore score reserve permit preBind bind postBind podGroupPostFilter") {
			_, err := ParseConfiguration(schedulertest.Configuration("profiles: [{plugins: {" + point + ": {enabled: [{name: " + name + "}]}}}]"))
			if want := "profiles[0].plugins." + point + `.enabled[0]: Invalid value: "` + name + `":` + why; err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
			if _, err := ParseConfiguration(schedulertest.Configuration("profiles: [{plugins: {" + point + ": {disabled: [{name: " + name + "}]}}}]")); err != nil {
				t.Errorf("%s left out at %s: %v", name, point, err)
			}
		}
	}
}

// What is said of a whole file, word for word.
func TestConfigurationErrorsWhole(t *testing.T) {
	const (
		lease    = "leaderElection.leaseDuration: Invalid value: \"10s\": must be greater than `RenewDeadline`"
		sorted   = "{queueSort: {enabled: [{name: PrioritySort}]}}"
		backoff  = "must be greater than or equal to PodInitialBackoffSeconds"
		extender = "extenders: [{urlPrefix: 'http://x', "
	)
	for _, test := range []struct{ name, fields, want string }{
		{"the longest backoff there is", "podMaxBackoffSeconds: 9223372036854775807", ""},
		{"a backoff of centuries", "podInitialBackoffSeconds: 10000000000\npodMaxBackoffSeconds: 10000000000", ""},
		{"centuries before years", "podInitialBackoffSeconds: 20000000000\npodMaxBackoffSeconds: 10000000000", "podMaxBackoffSeconds: Invalid value: 10000000000: " + backoff},
		{"both backoffs wrong", "podInitialBackoffSeconds: -1\npodMaxBackoffSeconds: -2", "[podInitialBackoffSeconds: Invalid value: -1: must be greater than 0, podMaxBackoffSeconds: Invalid value: -2: " + backoff + "]"},
		{"a lease a little longer", "leaderElection: {leaseDuration: 10001ms}", ""},
		{"a lease as long as the usual renewal", "leaderElection: {leaseDuration: 10s}", lease},
		{"a renewal as long as the usual lease", "leaderElection: {renewDeadline: 15s}", strings.Replace(lease, "10s", "15s", 1)},
		{"no times are the usual ones", "leaderElection: {leaderElect: true, leaseDuration: 0s, renewDeadline: 0s, retryPeriod: 0s}", ""},
		{"a retry before now", "leaderElection: {retryPeriod: -1ns}", `leaderElection.retryPeriod: Invalid value: "-1ns": must be greater than zero`},
		{"a name is wrong once more", "profiles: [{schedulerName: a}, {schedulerName: a}, {schedulerName: a}]",
			`[profiles[1].schedulerName: Duplicate value: "profiles[0].schedulerName", profiles[2].schedulerName: Duplicate value: "profiles[1].schedulerName"]`},
		{"another weight for sorting", "profiles: [{schedulerName: a, plugins: " + sorted + "}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort, weight: 1}]}}}]",
			`profiles[1].plugins.queueSort: Invalid value: "PrioritySort": must be the same for all profiles`},
		{"a weight of 0 is none", "profiles: [{schedulerName: a, plugins: " + sorted + "}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort, weight: 0}]}}}]", ""},
		{"other arguments for sorting", "profiles: [{schedulerName: a, plugins: " + sorted + ", pluginConfig: [{name: PrioritySort, args: {a: 1}}]}, {schedulerName: b, plugins: " + sorted + ", pluginConfig: [{name: PrioritySort, args: {a: 2}}]}]",
			`profiles[1].pluginConfig.args: Invalid value: "{\"a\":2}": queueSort must be the same for all profiles`},
		{"no arguments are as good as any", "profiles: [{schedulerName: a, plugins: " + sorted + ", pluginConfig: [{name: PrioritySort, args: {a: 1}}]}, {schedulerName: b, plugins: " + sorted + "}]", ""},
		{"a weight without scoring", extender + "weight: -1}]", ""},
		{"every field of an extender", extender + "filterVerb: f, preemptVerb: e, prioritizeVerb: p, bindVerb: b, weight: 1, enableHTTPS: false, httpTimeout: 1s, nodeCacheCapable: true, ignorable: true, managedResources: [{name: a.b/c, ignoredByScheduler: true}]}]", ""},
		{"a resource managed three times", extender + "managedResources: [{name: a.b/c}, {name: a.b/c}, {name: a.b/c}]}]",
			`[extenders[0].managedResources[1].name: Invalid value: "a.b/c": duplicate extender managed resource name, extenders[0].managedResources[2].name: Invalid value: "a.b/c": duplicate extender managed resource name]`},
		{"a percentage of each profile", "profiles: [{schedulerName: a, percentageOfNodesToScore: -1}, {schedulerName: b, percentageOfNodesToScore: 100}, {schedulerName: c, percentageOfNodesToScore: 101}]",
			"[profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100], profiles[2].percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]]"},
	} {
		_, err := ParseConfiguration(schedulertest.Configuration(test.fields))
		if got := fmt.Sprint(err); got != test.want && (err != nil || test.want != "") {
			t.Errorf("%s: %s\nwant %s", test.name, got, test.want)
		}
	}
}
