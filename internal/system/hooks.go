package system

import "skiff/internal/apiserver"

// postStartHooks are the steps after the start of a server. The names are upstream's; a step has several where upstream has a hook for each
// part of it.
type postStartHooks struct {
	cache, admission, objects, roles, serviceRepair, nodeAuthorizer     *apiserver.PostStartHook
	definitions, apiServices, aggregatedDiscovery, autoregistration     *apiserver.PostStartHook
	clusterAuthentication, flowControlObjects, flowControlConfiguration *apiserver.PostStartHook
	all                                                                 apiserver.PostStartHooks
}

// newPostStartHooks returns steps that have not finished. Without priority and fairness nothing is configured for it.
func newPostStartHooks(hasFairness bool) *postStartHooks {
	hook := apiserver.NewPostStartHook
	h := &postStartHooks{
		cache:                    hook("generic-apiserver-start-informers", "storage-readiness"),
		admission:                hook("start-apiserver-admission-initializer"),
		objects:                  hook("start-system-namespaces-controller", "bootstrap-controller", "start-kubernetes-service-cidr-controller", "scheduling/bootstrap-system-priority-classes"),
		roles:                    hook("rbac/bootstrap-roles"),
		serviceRepair:            hook("start-service-ip-repair-controllers"),
		nodeAuthorizer:           hook("node-authorizer"),
		definitions:              hook("start-apiextensions-informers", "start-apiextensions-controllers", "crd-informer-synced"),
		apiServices:              hook("start-kube-aggregator-informers", "apiservice-registration-controller", "apiservice-openapi-controller", "apiservice-openapiv3-controller"),
		aggregatedDiscovery:      hook("apiservice-discovery-controller"),
		autoregistration:         hook("kube-apiserver-autoregistration", "apiservice-status-local-available-controller", "apiservice-status-remote-available-controller"),
		clusterAuthentication:    hook("start-cluster-authentication-info-controller"),
		flowControlObjects:       hook("priority-and-fairness-config-producer"),
		flowControlConfiguration: hook("priority-and-fairness-config-consumer", "priority-and-fairness-filter"),
	}
	h.all = apiserver.PostStartHooks{
		h.cache, h.admission, h.objects, h.roles, h.serviceRepair, h.nodeAuthorizer, h.definitions, h.apiServices, h.aggregatedDiscovery, h.autoregistration,
		h.clusterAuthentication, h.flowControlObjects,
	}
	if hasFairness {
		h.all = append(h.all, h.flowControlConfiguration)
	}
	return h
}
