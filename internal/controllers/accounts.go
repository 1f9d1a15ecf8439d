package controllers

// accounts maps controllers to the service accounts in kube-system they use, if enabled. The names are upstream's, for which the
// API server has a role each. Controllers without an entry use the credentials of the controller manager: the one that creates the
// service accounts' tokens, those that upstream does not have, and those that patch volumes, for which upstream's roles allow
// updates only.
var accounts = map[string]string{
	"replicaset-controller":                                          "replicaset-controller",
	"replicationcontroller-controller":                               "replication-controller",
	"deployment-controller":                                          "deployment-controller",
	"job-controller":                                                 "job-controller",
	"statefulset-controller":                                         "statefulset-controller",
	"daemonset-controller":                                           "daemon-set-controller",
	"cronjob-controller":                                             "cronjob-controller",
	"ttl-after-finished-controller":                                  "ttl-after-finished-controller",
	"namespace-controller":                                           "namespace-controller",
	"garbage-collector-controller":                                   "generic-garbage-collector",
	"resourcequota-controller":                                       "resourcequota-controller",
	"pod-garbage-collector-controller":                               "pod-garbage-collector",
	"certificatesigningrequest-cleaner-controller":                   "certificate-controller",
	"podcertificaterequest-cleaner-controller":                       "podcertificaterequestcleaner",
	"legacy-serviceaccount-token-cleaner-controller":                 "legacy-service-account-token-cleaner",
	"serviceaccount-controller":                                      "service-account-controller",
	"root-ca-certificate-publisher-controller":                       "root-ca-cert-publisher",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller": "kube-apiserver-serving-clustertrustbundle-publisher",
	"clusterrole-aggregation-controller":                             "clusterrole-aggregation-controller",
	"certificatesigningrequest-approving-controller":                 "certificate-controller",
	"certificatesigningrequest-signing-controller":                   "certificate-controller",
	"bootstrap-signer-controller":                                    "bootstrap-signer",
	"token-cleaner-controller":                                       "token-cleaner",
	"endpointslice-controller":                                       "endpointslice-controller",
	"endpoints-controller":                                           "endpoint-controller",
	"endpointslice-mirroring-controller":                             "endpointslicemirroring-controller",
	"service-cidr-controller":                                        "service-cidrs-controller",
	"node-lifecycle-controller":                                      "node-controller",
	"taint-eviction-controller":                                      "node-controller",
	"node-ipam-controller":                                           "node-controller",
	"ttl-controller":                                                 "ttl-controller",
	"disruption-controller":                                          "disruption-controller",
	"horizontal-pod-autoscaler-controller":                           "horizontal-pod-autoscaler",
	"ephemeral-volume-controller":                                    "ephemeral-volume-controller",
	"persistentvolume-expander-controller":                           "expand-controller",
	"persistentvolume-attach-detach-controller":                      "attachdetach-controller",
}
