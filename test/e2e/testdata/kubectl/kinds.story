# One object of nearly every kind: how it is created, shown, described and deleted. Events are left out: how often a
# controller has tried again by then is chance.
kubectl apply -f namespace.yaml
kubectl apply -f cluster.yaml
kubectl apply -f namespaced.yaml
kubectl get nodes,pv,storageclass,csidriver,csinode,volumeattachment,volumeattributesclass,runtimeclass,ingressclass,priorityclass -o wide
kubectl get flowschema,prioritylevelconfiguration first -o wide
kubectl get validatingadmissionpolicy,validatingadmissionpolicybinding,mutatingadmissionpolicy,mutatingadmissionpolicybinding -o wide
kubectl get validatingwebhookconfiguration,mutatingwebhookconfiguration -o wide
kubectl get csr,clustertrustbundle -o wide
kubectl get deviceclass,resourceslice -o wide
kubectl get servicecidr
kubectl -n kinds get pod,podtemplate,rc,rs,deploy,sts,ds,job,cronjob -o wide
kubectl -n kinds get svc,endpoints,endpointslice,ingress,networkpolicy -o wide
kubectl -n kinds get pvc,csistoragecapacity,secret,sa,limitrange,quota,lease,pdb,hpa,controllerrevision,resourceclaim,resourceclaimtemplate -o wide
kubectl -n kinds get events -o wide --field-selector reason=Noted
kubectl -n kinds get events.v1.events.k8s.io --field-selector reason=Noted
kubectl -n kinds get pod plain -o yaml
kubectl -n kinds get pod full -o yaml
kubectl -n kinds get statefulset db -o yaml
kubectl -n kinds get daemonset agent -o yaml
kubectl -n kinds get replicaset set -o yaml
kubectl -n kinds get replicationcontroller old -o yaml
kubectl -n kinds get cronjob tick -o yaml
kubectl -n kinds get networkpolicy deny -o yaml
kubectl -n kinds get ingress front -o yaml
kubectl -n kinds get pvc claim -o yaml
kubectl -n kinds get limitrange limits -o yaml
kubectl -n kinds get hpa scaler -o yaml
kubectl -n kinds get hpa.v1.autoscaling scaler -o yaml
kubectl -n kinds get endpointslice slice -o yaml
kubectl -n kinds get lease heartbeat -o yaml
kubectl -n kinds get resourceclaim device -o yaml
kubectl -n kinds get event note -o yaml
kubectl -n kinds get events.v1.events.k8s.io note -o yaml
kubectl get pv disk -o yaml
kubectl get node worker -o yaml
kubectl get storageclass fast -o yaml
kubectl get csidriver driver.example.org -o yaml
kubectl get flowschema first -o yaml
kubectl get prioritylevelconfiguration first -o yaml
kubectl get validatingadmissionpolicy rule -o yaml
kubectl get mutatingadmissionpolicy change -o yaml
kubectl get validatingwebhookconfiguration hook -o yaml
kubectl get mutatingwebhookconfiguration hook -o yaml
kubectl get runtimeclass sandbox -o yaml
kubectl get ingressclass main -o yaml
kubectl get deviceclass gpu -o yaml
kubectl get csr person -o yaml
kubectl describe --show-events=false node worker
kubectl describe --show-events=false pv disk
kubectl describe --show-events=false storageclass fast
kubectl -n kinds describe --show-events=false pod plain
kubectl -n kinds describe --show-events=false pod full
kubectl -n kinds describe --show-events=false statefulset db
kubectl -n kinds describe --show-events=false daemonset agent
kubectl -n kinds describe --show-events=false pvc claim
kubectl -n kinds describe --show-events=false limitrange limits
kubectl -n kinds describe --show-events=false networkpolicy deny
kubectl -n kinds describe --show-events=false endpointslice slice
kubectl -n kinds describe --show-events=false pdb guard
kubectl certificate approve person
kubectl get csr person -o jsonpath='{.status.conditions[*].type}'
kubectl cordon worker
kubectl get node worker
kubectl uncordon worker
kubectl taint node worker key=value:NoSchedule
kubectl taint node worker key:NoSchedule-
kubectl -n kinds get pods --field-selector=status.phase=Pending -o name
kubectl -n kinds get pods --field-selector=spec.nodeName=worker -o name
kubectl get events -n kinds --field-selector involvedObject.name=plain,type=Normal
kubectl -n kinds get pod plain --output-watch-events --watch --request-timeout=2s
kubectl -n kinds scale rc old --replicas=0
kubectl -n kinds scale sts db --replicas=0
kubectl -n kinds delete pod plain full --now
kubectl -n kinds delete -f namespaced.yaml --ignore-not-found --wait=false | sort
kubectl delete -f cluster.yaml --wait=false
kubectl delete namespace kinds --wait=false
-- namespace.yaml --
apiVersion: v1
kind: Namespace
metadata: {name: kinds, labels: {purpose: tables}}
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: worker, labels: {node-role.kubernetes.io/worker: "", kubernetes.io/hostname: worker}}
spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: fast
  hostPath: {path: /data/disk}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: driver.example.org
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: driver.example.org}
spec: {attachRequired: true}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: worker}
spec:
  drivers: [{name: driver.example.org, nodeID: worker, topologyKeys: [zone]}]
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: attached}
spec: {attacher: driver.example.org, nodeName: worker, source: {persistentVolumeName: disk}}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: silver}
driverName: driver.example.org
parameters: {iops: "100"}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: sandbox}
handler: sandboxed
overhead: {podFixed: {cpu: 10m}}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: main}
spec: {controller: example.org/controller}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 500
preemptionPolicy: Never
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: first}
spec: {type: Limited, limited: {nominalConcurrencyShares: 5, limitResponse: {type: Queue, queuing: {queues: 8, handSize: 3, queueLengthLimit: 20}}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: first}
spec:
  priorityLevelConfiguration: {name: first}
  matchingPrecedence: 900
  distinguisherMethod: {type: ByUser}
  rules:
  - subjects: [{kind: User, user: {name: someone}}]
    resourceRules: [{verbs: [list], apiGroups: [""], resources: [pods], namespaces: ["*"]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: rule}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: [things]}]}
  validations: [{expression: "object.metadata.name != 'x'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: rule}
spec: {policyName: rule, validationActions: [Deny]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: change}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: [things]}]}
  reinvocationPolicy: Never
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/labels', value: {}}]"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: change}
spec: {policyName: change}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook}
webhooks:
- name: one.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {namespace: kinds, name: hook}}
  rules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: [things]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: hook}
webhooks:
- name: one.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {namespace: kinds, name: hook, path: /mutate}}
  rules: [{apiGroups: [example.org], apiVersions: [v1], operations: [CREATE], resources: [things]}]
---
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: person}
spec:
  request: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIZE1JR0VBZ0VBTUNJeER6QU5CZ05WQkFvTUJuQmxiM0JzWlRFUE1BMEdBMVVFQXd3R2NHVnljMjl1TUZrdwpFd1lIS29aSXpqMENBUVlJS29aSXpqMERBUWNEUWdBRW5JcVBtQTNyeW5kYzArSXFlV1grakJwTEJaN09oYitBCmFsN2wrclAyNm5lMlB4NmFST2l5RXh5TUtkU09pTExtUnByVm5NemhHVkE3a3kzMjhYU3JScUFBTUFvR0NDcUcKU000OUJBTUNBMGdBTUVVQ0lRQ0VEbnhFMWpBNHdpK0lXYlJXcnFBcVNmUU1EYWVHZ1ZPOWMwb0FjejIxQVFJZwphN01hRSt3K0xkd3NoN2NXaTVqQk9TaFEvOFlFcXcxdlE2bi9YREJPdjJFPQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K
  signerName: example.org/people
  usages: [client auth]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.example.org'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: worker-gpu}
spec:
  driver: gpu.example.org
  nodeName: worker
  pool: {name: worker, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0, attributes: {model: {string: a}}}]
-- namespaced.yaml --
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: kinds, labels: {app: plain}}
spec:
  containers: [{name: main, image: busybox}]
---
apiVersion: v1
kind: Pod
metadata: {name: full, namespace: kinds, annotations: {note: long}}
spec:
  nodeName: worker
  restartPolicy: OnFailure
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 5
  hostNetwork: true
  securityContext: {runAsUser: 1000, fsGroup: 2000}
  initContainers:
  - {name: prepare, image: busybox, command: [sh, -c, "true"]}
  - {name: sidecar, image: busybox, restartPolicy: Always}
  containers:
  - name: main
    image: nginx:1.2
    command: [nginx]
    args: [-g, "daemon off;"]
    ports: [{name: http, containerPort: 80}]
    env:
    - {name: A, value: b}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}
    envFrom: [{prefix: P_, configMapRef: {name: c}}]
    resources: {limits: {cpu: "1", memory: 64Mi}, requests: {cpu: 100m}}
    livenessProbe: {httpGet: {path: /, port: http}}
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 3}
    startupProbe: {tcpSocket: {port: 80}}
    lifecycle: {preStop: {sleep: {seconds: 1}}}
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: config, mountPath: /config, readOnly: true}
  volumes:
  - {name: scratch, emptyDir: {sizeLimit: 1Gi}}
  - {name: config, configMap: {name: c, items: [{key: a, path: b}]}}
  - {name: all, projected: {sources: [{secret: {name: s}}, {downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}]}}
  tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 10}]
  affinity:
    nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}]}]}}
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}]
---
apiVersion: v1
kind: PodTemplate
metadata: {name: template, namespace: kinds}
template:
  metadata: {labels: {a: b}}
  spec: {containers: [{name: main, image: busybox}]}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old, namespace: kinds}
spec:
  replicas: 0
  template:
    metadata: {labels: {app: old}}
    spec: {containers: [{name: main, image: busybox}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: set, namespace: kinds}
spec:
  replicas: 0
  selector: {matchLabels: {app: set}}
  template:
    metadata: {labels: {app: set}}
    spec: {containers: [{name: main, image: busybox}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: kinds}
spec:
  serviceName: db
  replicas: 0
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: main, image: busybox}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: kinds}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      nodeSelector: {none: such}
      containers: [{name: main, image: busybox}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: work, namespace: kinds}
spec:
  suspend: true
  completions: 3
  completionMode: Indexed
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick, namespace: kinds}
spec:
  schedule: "0 3 * * 1"
  timeZone: Europe/Zurich
  suspend: true
  jobTemplate: {spec: {template: {spec: {restartPolicy: OnFailure, containers: [{name: main, image: busybox}]}}}}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: kinds}
spec: {clusterIP: None, selector: {app: plain}, ports: [{port: 80, targetPort: 8080, protocol: UDP, name: udp}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slice, namespace: kinds, labels: {kubernetes.io/service-name: other}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1], conditions: {ready: true}, nodeName: worker}]
ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front, namespace: kinds}
spec:
  ingressClassName: main
  tls: [{hosts: [a.example.org], secretName: cert}]
  rules: [{host: a.example.org, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: kinds}
spec:
  podSelector: {matchLabels: {app: plain}}
  ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim, namespace: kinds}
spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 1Gi}}}
---
apiVersion: storage.k8s.io/v1
kind: CSIStorageCapacity
metadata: {name: room, namespace: kinds}
storageClassName: fast
capacity: 1Gi
---
apiVersion: v1
kind: LimitRange
metadata: {name: limits, namespace: kinds}
spec: {limits: [{type: PersistentVolumeClaim, max: {storage: 10Gi}}]}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: quota, namespace: kinds}
spec: {hard: {configmaps: "100"}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: heartbeat, namespace: kinds}
spec: {holderIdentity: me, leaseDurationSeconds: 10}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guard, namespace: kinds}
spec: {maxUnavailable: 10%, selector: {matchLabels: {app: none}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaler, namespace: kinds}
spec:
  maxReplicas: 5
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}
  - {type: Pods, pods: {metric: {name: requests}, target: {type: AverageValue, averageValue: "10"}}}
---
apiVersion: apps/v1
kind: ControllerRevision
metadata: {name: rev, namespace: kinds}
revision: 3
data: {a: b}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: device, namespace: kinds}
spec: {devices: {requests: [{name: one, exactly: {deviceClassName: gpu}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: devices, namespace: kinds}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: gpu}}]}}}
---
apiVersion: v1
kind: Event
metadata: {name: note, namespace: kinds}
involvedObject: {kind: Pod, namespace: kinds, name: plain, apiVersion: v1}
reason: Noted
message: something happened
type: Normal
count: 1
source: {component: story}
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:00:00Z"
